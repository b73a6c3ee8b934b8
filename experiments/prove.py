"""Prove losslessness: `python -m experiments.prove` prints the matrix and the negative controls, and keeps both."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

from experiments.assemble import build
from experiments.entry_point import one_line_errors, status
from experiments.negative_controls import Control, controls
from experiments.tiny_drafters import NAMES, tiny_factory
from framework.conformance.verifier_checks import ROUNDING, SAMPLINGS
from framework.engine import Engine
from framework.enumeration import worst_total_variation
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.goodness_of_fit import continuation_law
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tiny_models import tiny_target
from framework.verifiers.verifier import Guarantee, Verifier

CONF = Path(__file__).parents[1] / "conf"
PROMPT = [1, 2, 1, 1, 2]
ROWS_PER_BATCH = 20_000
# What was accepted so far decides the next gamma, for all rows of a batch: few rows make it differ between batches.
ROWS_PER_ADAPTIVE_BATCH = 64
SMALL_SHARE = 10  # one in so many of the samples, where they are few
LEAST_SAMPLES = 20_000  # with fewer, most continuations are too rare to be counted by themselves
FALSE_ALARM = 1e-9  # of one chi-square test, if the law is right; seeds are fixed


@dataclass(frozen=True)
class Cell:
    """One drafter, rule, gamma policy and sampling setting.

    Attributes:
        exact: whether the rule claims to be, at this setting.
        total_variation: of the rule on drafts of this law and shape, by enumeration.
        p_value: of the chi-square test through engine, cache, sampling and draws; None where nothing is claimed.
        sampled: total variation of that sample from the law, its noise included; None likewise.
        samples: sequences drawn for it.
    """

    drafter: str
    verifier: str
    gamma_policy: str
    sampling: str
    exact: bool
    total_variation: float
    p_value: float | None
    sampled: float | None
    samples: int

    @property
    def holds(self) -> bool:
        """Whether a rule that claims to be exact is; of a lossy one nothing is claimed."""
        return self.p_value is None or (self.total_variation <= ROUNDING and self.p_value > FALSE_ALARM)


class Prover:
    """Fills the matrix on a tiny random target, every part as its yaml describes it."""

    def __init__(self, *, samples: int, vocabulary: int, gamma: int):
        self.samples, self.gamma = samples, gamma
        self.target = tiny_target(vocabulary=vocabulary)
        self.drafters = {name: tiny_factory(name, vocabulary)(target=self.target) for name in NAMES}
        self.verifiers: dict[str, Verifier] = {name: build(node) for name, node in nodes("verifier").items()}
        self.law = cache(lambda sampling, length: continuation_law(self.target, PROMPT, length, sampling))
        self.enumerated = cache(
            lambda verifier, law, shape, sampling: worst_total_variation(
                self.verifiers[verifier], law=law, shape=shape, sampling=sampling
            )[0]
        )

    def matrix(self) -> Iterator[Cell]:
        """Every drafter with every rule that takes its drafts, at every sampling setting."""
        for drafter, verifier, sampling in product(self.drafters, self.verifiers, SAMPLINGS):
            if self.fits(verifier, drafter):
                yield self.cell(drafter, verifier, "fixed", sampling)

    def policies(self) -> Iterator[Cell]:
        """Every other gamma policy with every drafter and its first exact rule, drawing and greedy."""
        others = [policy for policy in nodes("gamma") if policy != "fixed"]
        for drafter, policy, sampling in product(self.drafters, others, ("T=1", "T=0")):
            exact = [name for name, rule in self.verifiers.items() if rule.guarantee is Guarantee.EXACT]
            yield self.cell(drafter, next(name for name in exact if self.fits(name, drafter)), policy, sampling)

    def fits(self, verifier: str, drafter: str) -> bool:
        """Whether a rule takes what a drafter drafts."""
        try:
            self.verifiers[verifier].check(self.drafters[drafter].law, self.drafters[drafter].shape)
        except ValueError:
            return False
        return True

    def cell(self, drafter: str, verifier: str, policy: str, sampling: str) -> Cell:
        """One enumeration and one chi-square test."""
        rule, built, setting = self.verifiers[verifier], self.drafters[drafter], SAMPLINGS[sampling]
        exact = rule.guarantee is Guarantee.EXACT or (rule.guarantee is Guarantee.GREEDY_EXACT and setting.greedy)
        tokens = self._sample(drafter, verifier, policy, setting) if exact else []
        fit = self.law(setting, len(tokens[0])).fit(tokens) if exact else None
        return Cell(
            drafter=drafter,
            verifier=verifier,
            gamma_policy=policy,
            sampling=sampling,
            exact=exact,
            total_variation=self.enumerated(verifier, built.law, built.shape, setting),
            p_value=fit.p_value if fit else None,
            sampled=fit.total_variation if fit else None,
            samples=len(tokens),
        )

    def _sample(self, drafter: str, verifier: str, policy: str, sampling: Sampling) -> list[list[int]]:
        """Continuations of one prompt: prefill's token and a round; one more token where gamma then changes."""
        engine = Engine(
            target=self.target,
            drafter=self.drafters[drafter],
            verifier=self.verifiers[verifier],
            gamma_policy=self._policy(policy),
            sampling=sampling,
        )
        adaptive = policy != "fixed"
        rows = ROWS_PER_ADAPTIVE_BATCH if adaptive else ROWS_PER_BATCH
        # Greedy decoding has one continuation, and small batches are slow.
        samples = self.samples // SMALL_SHARE if sampling.greedy or adaptive else self.samples
        stopping, tokens = Stopping(max_new_tokens=self.gamma + 2 + adaptive), []
        for first in range(0, samples, rows):
            seeds = list(range(first, min(first + rows, samples)))
            tokens += engine.generate([PROMPT] * len(seeds), stopping=stopping, seeds=seeds).tokens
        return tokens

    def _policy(self, name: str) -> GammaPolicy:
        node = nodes("gamma")[name].copy()
        ours = {"gamma": self.gamma, "max_gamma": self.gamma, "initial": self.gamma, "c": 0.1}
        node.update({key: value for key, value in ours.items() if key in node})
        return build(node)


@cache
def nodes(group: str) -> dict[str, DictConfig]:
    """Every yaml of a Hydra group, by name."""
    return {path.stem: OmegaConf.load(path) for path in sorted((CONF / group).glob("*.yaml"))}  # type: ignore[misc]


@dataclass(frozen=True)
class Caught:
    """What a negative control scored without its fault and with it."""

    fault: str
    measure: str
    without: float
    with_fault: float
    bound: float

    @classmethod
    def of(cls, control: Control) -> "Caught":
        return cls(control.fault, control.measure, control.run(False), control.run(True), control.bound)

    @property
    def holds(self) -> bool:
        """Whether the fault is seen, and nothing is seen without it."""
        return self.without <= self.bound < self.with_fault


def cell_table(title: str, cells: Sequence[Cell], parts: Sequence[str]) -> Table:
    """One row per combination of parts, which are attributes of a cell; one column per sampling setting."""
    table = Table(title=title)
    samples = max(cell.samples for cell in cells)
    table.caption = (
        f"total variation by enumeration, p of a chi-square test over {samples:,} sequences; "
        f"broken: total variation > {ROUNDING:g}, or p < {FALSE_ALARM:g}"
    )
    settings = list(dict.fromkeys(cell.sampling for cell in cells))
    for column in (*parts, *settings):
        table.add_column(column.replace("_", " "))
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(tuple(getattr(cell, part) for part in parts), {})[cell.sampling] = cell
    for names, by_setting in rows.items():
        table.add_row(*names, *(_words(by_setting[setting]) if setting in by_setting else "" for setting in settings))
    return table


def _words(cell: Cell) -> str:
    if cell.p_value is None:
        return f"lossy {cell.total_variation:.2f}"
    words = f"{cell.total_variation:.0e}  p={cell.p_value:.2g}"
    return words if cell.holds else f"[bold red]BROKEN {words}"


def control_table(found: Sequence[Caught]) -> Table:
    """One row per fault."""
    table = Table(title="Faults put in on purpose")
    for column in ("fault", "measured", "without", "with it", ""):
        table.add_column(column)
    for control in found:
        verdict = "seen" if control.holds else "[bold red]NOT SEEN"
        table.add_row(control.fault, control.measure, f"{control.without:.1g}", f"{control.with_fault:.3g}", verdict)
    return table


@hydra.main(version_base="1.3", config_path="../conf", config_name="prove")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        for key, least in (("samples", LEAST_SAMPLES), ("vocabulary", 3), ("max_gamma", 1)):
            if not isinstance(cfg[key], int) or cfg[key] < least:
                raise ValueError(f"{key} is {cfg[key]!r}; allowed: a whole number >= {least}")
        prover = Prover(samples=cfg.samples, vocabulary=cfg.vocabulary, gamma=cfg.max_gamma)
        matrix: list[Cell] = []
        policies: list[Cell] = []
        with status("proving") as doing:
            for cells, source in ((matrix, prover.matrix()), (policies, prover.policies())):
                for cell in source:
                    cells.append(cell)
                    doing.update(f"{cell.drafter}, {cell.verifier}, {cell.gamma_policy}, {cell.sampling}")
            doing.update("putting in faults")
            found = [Caught.of(control) for control in controls()]
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(cell_table("Drafters and verifiers", matrix, ("drafter", "verifier")))
        console.print(cell_table("Gamma policies", policies, ("drafter", "gamma_policy")))
        console.print(control_table(found))
        proof = {
            "cells": [asdict(cell) for cell in matrix + policies],
            "controls": [asdict(caught) for caught in found],
        }
        path = Path(HydraConfig.get().runtime.output_dir) / "proof.json"
        path.write_text(json.dumps(proof, indent=1))
        parts: list[Cell | Caught] = [*matrix, *policies, *found]
        broken = sum(not part.holds for part in parts)
        console.print(f"{path}: {len(matrix + policies)} cells, {len(found)} faults; {broken} do not hold")
        if broken:
            sys.exit(1)


if __name__ == "__main__":
    main()
