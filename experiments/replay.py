"""Tokens per pass of copying drafters, if the target generated the references: `python -m experiments.replay`."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("replay")
    raise SystemExit

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.config.builders import (
    build,
    build_prompts,
    build_target,
    build_with_target,
    check_basics,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.reporting.tables.text_table import Cells, markdown, shown
from framework.conformance.scripted_model import ScriptedModel
from framework.core.drafter import Drafter, drafts_on_host
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.tally import Tally
from framework.models.cached_lm import CachedLM
from framework.models.target import Target


def replay(cfg: DictConfig) -> Iterator[tuple[str, str, Tally]]:
    """Decode with every drafter at every value of the varied key; yield value, drafter name and tally.

    Raises:
        ValueError: a prompt has no reference, a drafter drafts on the device or drafts trees, or an option is wrong.
    """
    check_basics(cfg, {"max_new_tokens": 1}, or_null=("prompts.count", "prompts.max_prompt_tokens", "target.context"))
    if not str(cfg.gamma.get("_target_")).endswith(".Fixed"):
        raise ValueError("gamma is a policy that adapts; allowed: fixed, with its number of tokens as gamma.gamma")
    varied = variations(cfg)
    for each in varied.values():
        build(each.prompts.source), build(each.gamma), [build(node) for node in each.drafters.values()]
    with status("loading the target's tokenizer"):
        target = build_target(cfg)
    for value, each in varied.items():
        drafters: dict[str, Drafter] = {
            str(name): build_with_target(build(node), node, target) for name, node in each.drafters.items()
        }
        for name, drafter in drafters.items():
            if not drafts_on_host(drafter) or hasattr(drafter, "num_nodes"):
                raise ValueError(
                    f"drafters.{name} drafts on the device, or a tree; allowed: drafters that find chains on the host"
                )
        (prompts, written), gamma_policy = references(each, target), build(each.gamma)
        for name, drafter in drafters.items():
            engine = Engine(
                target=written,
                drafter=drafter,
                gamma_policy=gamma_policy,
                sampling=Sampling(temperature=0),
            )
            stopping = Stopping(max_new_tokens=cfg.max_new_tokens, eos_ids=(target.tokenizer.eos_token_id,))
            yield value, name, Tally.total(engine.each_alone(prompts, stopping=stopping, seed=0))


def variations(cfg: DictConfig) -> dict[str, DictConfig]:
    """Configs by value of the varied key.

    Raises:
        ValueError: the varied key does not exist, or has no values.
    """
    if cfg.vary is None:
        return {"": cfg}
    if not isinstance(cfg.vary, DictConfig) or not OmegaConf.is_list(cfg.vary.get("values")) or not cfg.vary["values"]:
        raise ValueError(f"vary is {cfg.vary}; allowed: a key and, as values, a list of its values; or vary=null")
    if OmegaConf.select(cfg, str(cfg.vary.key)) is None:
        raise ValueError(
            f"vary.key is {cfg.vary.key!r}, which this config does not have; allowed: a key of this config, or "
            "vary=null"
        )
    found = {}
    for value in cfg.vary["values"]:
        found[str(value)] = cfg.copy()
        OmegaConf.update(found[str(value)], cfg.vary.key, value)
    return found


def references(cfg: DictConfig, target: Target) -> tuple[list[list[int]], Target]:
    """Return the prompts, and a scripted target that answers each with its reference.

    Raises:
        ValueError: a prompt has no reference, or the tokenizer no end-of-text token.
    """
    end = target.tokenizer.eos_token_id
    if end is None:
        raise ValueError("target has a tokenizer without an end-of-text token; allowed: a tokenizer with one")
    answers = {}
    for prompt in build_prompts(cfg, target).prompts:
        if prompt.reference is None:
            raise ValueError(f"prompt {prompt.name} has no reference; allowed: prompts=typos, docstrings")
        answer = target.tokenizer(prompt.reference, add_special_tokens=False)["input_ids"]
        answers[prompt.tokens] = answer[: cfg.max_new_tokens]
    model = ScriptedModel(
        answers, end=end, vocabulary_size=target.vocabulary_size, context=target.model.context + cfg.max_new_tokens
    )
    return [list(tokens) for tokens in answers], replace(target, model=cast(CachedLM, model))


def table(rows: list[tuple[str, str, Tally]], varied: str) -> Cells:
    """Table of alpha, tau and the accepted share of drafted tokens."""
    cells = [[varied, "drafter", "α", "τ", "nodes per pass", "kept of drafted", "passes"]]
    for value, name, tally in rows:
        metrics, drafted, passes = tally.metrics(), tally.num_drafted, tally.num_passes
        share = f"{sum(tally.accepted_by_position) / drafted:.0%}" if drafted else "–"
        alpha = "–" if metrics["alpha/empirical"] is None else f"{metrics['alpha/empirical']:.3f}"
        cells.append([value, name, alpha, f"{metrics['tau']:.2f}", f"{drafted / passes:.2f}", share, f"{passes:.0f}"])
    return cells


@command("replay")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        folder = Path(HydraConfig.get().runtime.output_dir)
        rows = []
        with status("replaying the references") as doing:
            for value, name, tally in replay(cfg):
                rows.append((value, name, tally))
                doing.update(f"{len(rows)} replays, the last with {name}")
        cells = table(rows, cfg.vary.key.split(".")[-1] if cfg.vary else "")
        Console().print(shown(cells, title="If the target wrote the references"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(markdown(cells), encoding="utf-8")
