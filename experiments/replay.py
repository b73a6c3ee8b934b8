"""Tokens per pass if the target wrote the references: `python -m experiments.replay` for drafters that copy."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from experiments.assemble import build, build_prompts, build_target, check_basics, register_resolvers
from experiments.cells import Cells, markdown, shown
from experiments.entry_point import one_line_errors, status
from framework.cached_lm import CachedLM
from framework.drafter import Drafter, drafts_on_host
from framework.engine import Engine
from framework.reference_model import ReferenceModel
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tally import Tally
from framework.target import Target

register_resolvers()


def replay(cfg: DictConfig) -> Iterator[tuple[str, str, Tally]]:
    """Every drafter at every value of what is varied: the value, the drafter's name, and what was counted.

    Raises:
        ValueError: a prompt without a reference, a drafter that drafts on the device or a tree, or a wrong setting.
    """
    check_basics(cfg, {"max_new_tokens": 1}, or_null=("prompts.count", "prompts.first_tokens", "target.context"))
    varied = variations(cfg)
    for each in varied.values():
        build(each.prompts.source), build(each.gamma), [build(node) for node in each.drafters.values()]
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    with status("loading the target's tokenizer"):
        target = build_target(cfg)
    for value, each in varied.items():
        drafters: dict[str, Drafter] = {str(name): build(node)(target=target) for name, node in each.drafters.items()}
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
    """The config with every value of what is varied, by that value.

    Raises:
        ValueError: what is varied is no key, or has no values.
    """
    if cfg.vary is None:
        return {"": cfg}
    if not isinstance(cfg.vary, DictConfig) or not OmegaConf.is_list(cfg.vary.get("over")) or not cfg.vary.over:
        raise ValueError(f"vary is {cfg.vary}; allowed: a key and, as over, a list of its values; or vary=null")
    if OmegaConf.select(cfg, str(cfg.vary.key)) is None:
        raise ValueError(
            f"vary.key is {cfg.vary.key!r}, which this config does not have; allowed: one it has, or vary=null"
        )
    found = {}
    for value in cfg.vary.over:
        found[str(value)] = cfg.copy()
        OmegaConf.update(found[str(value)], cfg.vary.key, value)
    return found


def references(cfg: DictConfig, target: Target) -> tuple[list[list[int]], Target]:
    """The prompts, and a target that answers each with its reference.

    Raises:
        ValueError: a prompt has none, or the tokenizer no end.
    """
    end = target.tokenizer.eos_token_id
    if end is None:
        raise ValueError("target has a tokenizer without an end-of-text token; allowed: one that has it")
    answers = {}
    for prompt in build_prompts(cfg, target).prompts:
        if prompt.reference is None:
            raise ValueError(f"prompt {prompt.name} has no reference to be written; allowed: prompts=typos, docstrings")
        answer = target.tokenizer(prompt.reference, add_special_tokens=False)["input_ids"]
        answers[prompt.tokens] = answer[: cfg.max_new_tokens]
    model = ReferenceModel(
        answers, end=end, vocabulary_size=target.vocabulary_size, context=target.model.context + cfg.max_new_tokens
    )
    return [list(tokens) for tokens in answers], replace(target, model=cast(CachedLM, model))


def table(rows: list[tuple[str, str, Tally]], varied: str) -> Cells:
    """alpha and tau, and how much of what was drafted was kept."""
    cells = [[varied, "drafter", "α", "τ", "nodes per pass", "kept of drafted", "passes"]]
    for value, name, tally in rows:
        metrics, drafted, passes = tally.metrics(), tally.num_drafted, tally.num_passes
        share = f"{sum(tally.accepted_by_position) / drafted:.0%}" if drafted else "–"
        alpha = "–" if metrics["alpha/empirical"] is None else f"{metrics['alpha/empirical']:.3f}"
        cells.append([value, name, alpha, f"{metrics['tau']:.2f}", f"{drafted / passes:.2f}", share, f"{passes:.0f}"])
    return cells


@hydra.main(version_base="1.3", config_path="../conf", config_name="replay")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        folder = Path(HydraConfig.get().runtime.output_dir)
        cells = table(list(replay(cfg)), cfg.vary.key.split(".")[-1] if cfg.vary else "")
        Console().print(shown(cells, title="If the target wrote the references"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "table.md").write_text(markdown(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
