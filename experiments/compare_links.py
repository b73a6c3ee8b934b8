"""What a drafter far from its target sends, and how long drafts should be: `python -m experiments.compare_links`.

Bytes and acceptance are counted; times follow from them, for the machines and links that conf/compare_links.yaml names.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from experiments.assemble import (
    build,
    build_engine,
    build_prompts,
    build_sampling,
    build_stopping,
    build_target,
    check_basics,
    check_parts,
    register_resolvers,
)
from experiments.entry_point import one_line_errors, status
from framework.tally import Tally
from framework.theory import cost_over_link, optimal_gamma, speedup

register_resolvers()
MAX_GAMMA = 100


@dataclass(frozen=True)
class Sent:
    """What a way to send laws came to.

    Attributes:
        alpha: overlap over tested tokens.
        up: bytes to the target, per committed token and per drafted one.
        down: bytes to the drafter, per committed token and per round; prompts included.
    """

    top_k: int | None
    bits: int | None
    alpha: float
    tau: float
    up: float
    up_per_drafted: float
    down: float
    down_per_round: float


def count(cfg: DictConfig, laws: list[dict[str, int | None]]) -> list[Sent]:
    """Decode the same prompts once for every way to send laws.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    nodes = check_before_loading(cfg, laws)
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    sampling = build_sampling(cfg)
    with status("loading the target"):
        target = build_target(cfg)
    prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
    stopping, found = build_stopping(cfg, target), []
    for law, node in zip(laws, nodes, strict=True):
        drafter: Any = check_parts(cfg, {"drafter": node})["drafter"](target=target)
        engine = build_engine(cfg, drafter, target, sampling, compiled=cfg.engine.compile is True)
        with status(f"decoding with {law}"):
            alone = engine.each_alone(prompts, stopping=stopping, seed=cfg.seed, detailed=True)
            tallies, ups, downs = zip(*((each, drafter.bytes_up, drafter.bytes_down) for each in alone), strict=True)
        tally, up, down = Tally.total(tallies), sum(ups), sum(downs)
        metrics = tally.metrics()
        found.append(
            Sent(**law, alpha=metrics["alpha/overlap"], tau=metrics["tau"], up=up / tally.committed,
                 up_per_drafted=up / tally.num_drafted, down=down / tally.committed,
                 down_per_round=down / tally.num_rounds)
        )  # fmt: skip
    return found


def check_before_loading(cfg: DictConfig, laws: list[dict[str, int | None]]) -> list[DictConfig]:
    """Everything that can be wrong without a model; returns the drafter's node for every way to send laws.

    Raises:
        ValueError: the message names the yaml key.
    """
    check_basics(
        cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["prompts.count", "prompts.first_tokens", "target.context"]
    )
    if not str(cfg.drafter._target_).endswith(".Remote"):
        raise ValueError(f"drafter is {cfg.drafter._target_}, which sends nothing; allowed: drafter=remote")
    if not {"top_k", "bits"} <= set(cfg.drafter.drafter):
        raise ValueError("drafter.drafter has no top_k and bits; allowed: drafter@drafter.drafter=small_transformer")
    if not laws or any(not isinstance(law, dict) or set(law) != {"top_k", "bits"} for law in laws):
        raise ValueError(f"laws is {laws}; allowed: a list of {{top_k: ..., bits: ...}}")
    numbers: dict[str, tuple[Any, float]] = {f"times.{name}": (value, 0) for name, value in cfg.times.items()}
    for name, link in cfg.links.items():
        numbers[f"links.{name}.megabits_per_second"] = (link.megabits_per_second, 0)
        numbers[f"links.{name}.latency_ms"] = (link.latency_ms, -1e-9)  # 0 is allowed
    for key, (value, above) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < math.inf:
            raise ValueError(f"{key} is {value!r}; allowed: a number {'>= 0' if above else '> 0'}")
    if build(cfg.gamma).max_gamma < 1:
        raise ValueError("gamma.gamma is 0, which sends nothing; allowed: a whole number >= 1")
    nodes = []
    for law in laws:
        node = OmegaConf.merge(cfg.drafter, {"drafter": law})
        assert isinstance(node, DictConfig)
        check_parts(cfg, {"drafter": node})
        nodes.append(node)
    return nodes


def best_over(sent: Sent, link: DictConfig, times: DictConfig) -> tuple[int, float]:
    """The best gamma over a link, and the speedup over the target's own plain decoding that it promises."""
    ms_per_byte = 8e-3 / link.megabits_per_second
    round_trip = (2 * link.latency_ms + sent.down_per_round * ms_per_byte) / times.target
    c = cost_over_link(
        times.draft / times.target, round_trip=round_trip, per_token=sent.up_per_drafted * ms_per_byte / times.target
    )
    gamma = optimal_gamma(sent.alpha, c, MAX_GAMMA)
    # Where no draft pays, the target goes on alone, and waits for no link.
    return (gamma, best) if (best := speedup(sent.alpha, gamma, c) / (1 + round_trip)) > 1 else (0, 1.0)


def table(found: list[Sent], cfg: DictConfig) -> Table:
    shown = Table(caption="speedups: theory of alpha, bytes and times.*, not measured; gamma 0: no draft")
    for column in ("tokens of q", "bits", "alpha", "tau", "bytes up / token", "down / token"):
        shown.add_column(column, justify="right")
    for name in cfg.links:
        shown.add_column(f"{name}: gamma, speedup", justify="right")
    for sent in found:
        best = [best_over(sent, link, cfg.times) for link in cfg.links.values()]
        shown.add_row(
            str(sent.top_k or "all"), str(sent.bits or "as it is"), f"{sent.alpha:.3f}", f"{sent.tau:.2f}",
            f"{sent.up:.0f}", f"{sent.down:.0f}", *(f"{gamma}, {gain:.2f}" for gamma, gain in best),
        )  # fmt: skip
    return shown


@hydra.main(version_base="1.3", config_path="../conf", config_name="compare_links")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        found = count(cfg, OmegaConf.to_container(cfg.laws))  # type: ignore[arg-type]
        file = Path(HydraConfig.get().runtime.output_dir) / "links.json"
        file.write_text(json.dumps([asdict(sent) for sent in found], indent=2) + "\n")
        Console(width=150).print(table(found, cfg))


if __name__ == "__main__":
    main()
