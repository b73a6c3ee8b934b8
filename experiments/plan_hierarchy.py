"""Choose levels and block lengths of hierarchical drafting: `python -m experiments.plan_hierarchy`.

Acceptance rates of all pairs of models and times of their passes give the best hierarchy, and the speedup to expect.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("plan_hierarchy")
    raise SystemExit

import json
import statistics
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build_prompts,
    build_sampling,
    build_stopping,
    build_target,
    check_basics,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.reporting.tables.text_table import markdown, shown
from framework.core.option_error import options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Prompt, text_of
from framework.core.validation import check_whole
from framework.decoding.autoregressive import Autoregressive
from framework.metrics.hierarchy import Hierarchy, best_hierarchy, drafter_latency
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import fingerprint, load_draft_model
from framework.models.target import Target

COLUMNS = ["models", "drafter", "gamma of each level", "predicted speedup", "of the drafter"]
PASSES, BLOCKS = 20, 3  # timed passes of one block, and blocks


@dataclass(frozen=True)
class Plan:
    """The best hierarchy of at most so many models.

    Attributes:
        models: paths of its models, smallest first.
        gammas: drafted tokens per pass of every model but the smallest.
        predicted: speedup over plain decoding, if no drafted token is cut off.
        of_drafter: the same of the drafter `hierarchical`, which drafts exactly gamma tokens.
    """

    models: list[str]
    gammas: list[int]
    predicted: float
    of_drafter: float

    @property
    def cells(self) -> list[str]:
        """Formatted cells in the order of COLUMNS."""
        drafter = {1: "none", 2: "small_transformer"}.get(len(self.models), "hierarchical")
        return [
            " → ".join(Path(model).name for model in self.models), drafter, ", ".join(map(str, self.gammas)),
            f"{self.predicted:.2f}", f"{self.of_drafter:.2f}",
        ]  # fmt: skip


def alphas_of(models: list[Target], texts: list[tuple[Prompt, int]], sampling: Sampling) -> list[list[float]]:
    """Mean overlap of model i and each smaller model j, over the new tokens of the target's texts.

    Args:
        models: smallest first.
        texts: each with its number of new tokens.
        sampling: settings that turn logits into distributions.
    """
    totals = [[0.0] * upper for upper in range(len(models))]
    for text, number in texts:
        probs = [sampling.probs(model.uncached(text)[-number - 1 : -1]) for model in models]
        for upper in range(len(models)):
            for lower in range(upper):
                totals[upper][lower] += float(torch.minimum(probs[upper], probs[lower]).sum())
    tokens = sum(number for _, number in texts)
    return [[min(total / tokens, 1.0) for total in row] for row in totals]


def seconds_per_pass(model: CachedLM, text: list[int]) -> float:
    """Median time of an eager pass over one token at the end of a text."""
    tokens = torch.tensor([text], device=model.device)
    model.begin(1, len(text))
    model.forward(tokens, None, visible=len(text))
    start, last = torch.tensor([len(text) - 1], device=model.device), tokens[:, -1:]
    found = []
    for _ in range(BLOCKS):
        begin = time.perf_counter()
        for _ in range(PASSES):
            model.forward(last, start, visible=len(text)).logits.argmax().item()
        found.append((time.perf_counter() - begin) / PASSES)
    return statistics.median(found)


def plans(paths: list[str], costs: list[float], alphas: list[list[float]], *, max_gamma: int) -> list[Plan]:
    """The best hierarchies of one, two, ... models, without those that a smaller one equals."""
    found: list[Hierarchy] = []
    for most in range(1, len(paths) + 1):
        best = best_hierarchy(costs, alphas, max_gamma=max_gamma, most_models=most)
        if best not in found:
            found.append(best)
    return [
        Plan(
            models=[paths[model] for model in best.models],
            gammas=list(best.gammas),
            predicted=costs[-1] / best.latency,
            of_drafter=costs[-1]
            / drafter_latency(
                [costs[model] for model in best.models],
                [alphas[upper][lower] for lower, upper in pairwise(best.models)],
                best.gammas,
            ),
        )
        for best in found
    ]


def check_before_loading(cfg: DictConfig) -> None:
    """Run all checks that need no model.

    Raises:
        ValueError: the message names the yaml key.
    """
    check_basics(
        cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["prompts.count", "prompts.max_prompt_tokens", "target.context"]
    )
    check_whole("max_gamma", cfg.max_gamma, least=1, most=1000)
    if not OmegaConf.is_list(cfg.models) or not cfg.models or not all(isinstance(path, str) for path in cfg.models):
        raise ValueError(f"models is {cfg.models!r}; allowed: a list of paths of small models")
    if cfg.costs is None:
        return
    costs = OmegaConf.to_container(cfg.costs) if OmegaConf.is_list(cfg.costs) else None
    numbers = isinstance(costs, list) and all(isinstance(cost, int | float) and 0 < cost <= 1 for cost in costs)
    if not numbers or len(cfg.costs) != len(cfg.models):
        raise ValueError(
            f"costs is {cfg.costs}; allowed: null, or a number in (0, 1] for each of models, {len(cfg.models)}"
        )


def decoded(cfg: DictConfig, target: Target, sampling: Sampling) -> list[tuple[Prompt, int]]:
    """The config's prompts continued by the target, each with its number of new tokens."""
    prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
    seeds = [cfg.seed + number for number in range(len(prompts))]
    plain = Autoregressive(target=target, sampling=sampling)
    new = plain.generate(prompts, stopping=build_stopping(cfg, target), seeds=seeds).tokens
    return [(target.as_prompt(start) + more, len(more)) for start, more in zip(prompts, new, strict=True) if more]


def measured(cfg: DictConfig) -> tuple[list[str], list[float], list[list[float]]]:
    """Paths of the models, smallest first, times of their passes in target passes, and acceptance rates of all pairs.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    with status("loading the models"):
        node = {"dtype": cfg.target.dtype, "attention": cfg.target.attention}
        with options_under("models"):
            small = [load_draft_model(path=path, **node) for path in cfg.models]
        target = build_target(cfg)
        with options_under("models"):
            loaded = [load(target) for load in small]
    if cfg.costs is None and target.model.text_start:
        raise ValueError("costs is null; allowed for an encoder-decoder target: a list of numbers in (0, 1]")
    sampling = build_sampling(cfg)
    with status("decoding"):
        texts = decoded(cfg, target, sampling)
    with status("timing passes"):
        costs = [*(cfg.costs or ()), 1.0]
        if cfg.costs is None:
            longest = max((text_of(text) for text, _ in texts), key=len)
            seconds = [seconds_per_pass(model, longest) for model in [*loaded, target.model]]
            costs = [each / seconds[-1] for each in seconds]
    *order, slowest = sorted(range(len(costs)), key=lambda model: (costs[model], model))
    if slowest != len(loaded):
        raise ValueError(f"models.{slowest} takes {costs[slowest]:.2f} of the target's time; allowed: faster models")
    drafters = [Target(model, target.tokenizer, target.vocabulary_size, fingerprint(model.model)) for model in loaded]
    with status("comparing distributions"):
        alphas = alphas_of([*(drafters[model] for model in order), target], texts, sampling)
    return [*(cfg.models[model] for model in order), cfg.target.path], sorted(costs), alphas


@command("plan_hierarchy")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"), torch.no_grad():
        check_before_loading(cfg)
        paths, costs, alphas = measured(cfg)
        found = plans(paths, costs, alphas, max_gamma=cfg.max_gamma)
        names = [Path(path).name for path in paths]
        rates = "; ".join(
            f"{names[upper]} takes {costs[upper]:.2f}"
            + "".join(f", α with {names[lower]} {alphas[upper][lower]:.2f}" for lower in range(upper))
            for upper in range(len(names))
        )
        cells, caption = [COLUMNS, *(plan.cells for plan in found)], f"times in target passes; {rates}"
        Console(width=150).print(shown(cells, title="The best hierarchies", caption=caption))
        folder = Path(HydraConfig.get().runtime.output_dir)
        values = {"models": paths, "costs": costs, "alphas": alphas, "plans": [asdict(plan) for plan in found]}
        (folder / "hierarchy.json").write_text(json.dumps(values, indent=1))
        (folder / "hierarchy.md").write_text(f"{markdown(cells)}\n{caption}.\n", encoding="utf-8")
        print(f"hierarchy.json and hierarchy.md: {folder}")
