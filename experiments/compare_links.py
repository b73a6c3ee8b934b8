"""Traffic and best gamma of a remote drafter by link and format of q: `python -m experiments.compare_links`.

Bytes and acceptance are counted; times are computed from them for the machines and links in conf/compare_links.yaml.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("compare_links")
    raise SystemExit

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from experiments.config.builders import (
    build,
    build_engine,
    build_prompts,
    build_sampling,
    build_stopping,
    build_target,
    check_basics,
    check_parts,
    compile_is_true,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.progress import Steps
from framework.metrics.tally import Tally
from framework.metrics.theory import cost_over_link, optimal_gamma, speedup

MAX_GAMMA = 100
FORMAT = {"top_k", "top_p", "bits"}


@dataclass(frozen=True)
class Sent:
    """Results of one format for sending distributions.

    Attributes:
        top_k: number of tokens whose probability is sent; None: all.
        top_p: mass of the most likely tokens whose probability is sent; None: all.
        bits: bits per probability; None: not rounded.
        alpha: mean overlap over tested tokens.
        tau: tokens per round.
        up: bytes to the target per committed token.
        up_per_drafted: bytes to the target per drafted token.
        down: bytes to the drafter per committed token, prompts included.
        down_per_round: bytes to the drafter per round, prompts included.
    """

    top_k: int | None
    top_p: float | None
    bits: int | None
    alpha: float
    tau: float
    up: float
    up_per_drafted: float
    down: float
    down_per_round: float


def count(cfg: DictConfig, formats: list[dict[str, Any]]) -> list[Sent]:
    """Decode the same prompts once per format.

    Raises:
        ValueError, OSError: the message names the yaml key.
    """
    nodes, compiled = check_before_loading(cfg, formats), compile_is_true(cfg)
    sampling = build_sampling(cfg)
    with status("loading the target"):
        target = build_target(cfg)
    prompts = [list(prompt.tokens) for prompt in build_prompts(cfg, target).prompts]
    stopping, found = build_stopping(cfg, target), list[Sent]()
    with Steps(len(formats)) as steps:
        for sent_as, node in zip(formats, nodes, strict=True):
            steps.update(f"decoding with {sent_as}", completed=len(found))
            drafter: Any = check_parts(cfg, {"drafter": node})["drafter"](target=target)
            engine = build_engine(cfg, drafter, target, sampling, compiled=compiled)
            alone = engine.each_alone(prompts, stopping=stopping, seed=cfg.seed, detailed=True)
            tallies, ups, downs = zip(*((each, drafter.bytes_up, drafter.bytes_down) for each in alone), strict=True)
            tally, up, down = Tally.total(tallies), sum(ups), sum(downs)
            metrics = tally.metrics()
            found.append(
                Sent(**sent_as, alpha=metrics["alpha/overlap"], tau=metrics["tau"], up=up / tally.committed,
                     up_per_drafted=up / tally.num_drafted, down=down / tally.committed,
                     down_per_round=down / tally.num_rounds)
            )  # fmt: skip
    return found


def check_before_loading(cfg: DictConfig, formats: list[dict[str, Any]]) -> list[DictConfig]:
    """Run all checks that need no model; return the drafter's config node for every format.

    Raises:
        ValueError: the message names the yaml key.
    """
    check_basics(
        cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["prompts.count", "prompts.max_prompt_tokens", "target.context"]
    )
    if not str(cfg.drafter._target_).endswith(".Remote"):
        raise ValueError(f"drafter is {cfg.drafter._target_}, which sends nothing; allowed: drafter=remote")
    if not set(cfg.drafter.drafter) >= FORMAT:
        raise ValueError(
            "drafter.drafter has no top_k, top_p and bits; allowed: drafter@drafter.drafter=small_transformer"
        )
    if not formats or any(not isinstance(sent_as, dict) or set(sent_as) != FORMAT for sent_as in formats):
        raise ValueError(f"formats is {formats}; allowed: a list of {{top_k: ..., top_p: ..., bits: ...}}")
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
    for sent_as in formats:
        node = OmegaConf.merge(cfg.drafter, {"drafter": sent_as})
        assert isinstance(node, DictConfig)
        check_parts(cfg, {"drafter": node})
        nodes.append(node)
    return nodes


def best_over(sent: Sent, link: DictConfig, times: DictConfig) -> tuple[int, float]:
    """Best gamma over a link, and its predicted speedup over plain decoding on the target's machine."""
    ms_per_byte = 8e-3 / link.megabits_per_second
    round_trip = (2 * link.latency_ms + sent.down_per_round * ms_per_byte) / times.target
    c = cost_over_link(
        times.draft / times.target, round_trip=round_trip, per_token=sent.up_per_drafted * ms_per_byte / times.target
    )
    gamma = optimal_gamma(sent.alpha, c, MAX_GAMMA)
    # If no draft pays, the target decodes alone without the link.
    return (gamma, best) if (best := speedup(sent.alpha, gamma, c) / (1 + round_trip)) > 1 else (0, 1.0)


def table(found: list[Sent], cfg: DictConfig) -> Table:
    shown = Table(caption="speedups: predicted from alpha, bytes and times.*, not measured; gamma 0: no draft")
    for column in ("tokens of q", "mass of q", "bits", "alpha", "tau", "bytes up / token", "down / token"):
        shown.add_column(column, justify="right")
    for name in cfg.links:
        shown.add_column(f"{name}: gamma, speedup", justify="right")
    for sent in found:
        best = [best_over(sent, link, cfg.times) for link in cfg.links.values()]
        shown.add_row(
            str(sent.top_k or "all"), str(sent.top_p or "all"), str(sent.bits or "as it is"),
            f"{sent.alpha:.3f}", f"{sent.tau:.2f}", f"{sent.up:.0f}", f"{sent.down:.0f}",
            *(f"{gamma}, {gain:.2f}" for gamma, gain in best),
        )  # fmt: skip
    return shown


@command("compare_links")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        found = count(cfg, OmegaConf.to_container(cfg.formats))  # type: ignore[arg-type]
        file = Path(HydraConfig.get().runtime.output_dir) / "links.json"
        file.write_text(json.dumps([asdict(sent) for sent in found], indent=2) + "\n")
        Console(width=150).print(table(found, cfg))
