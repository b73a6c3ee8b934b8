"""Prove losslessness: `python -m experiments.prove` prints the matrix and the negative controls, and keeps both."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table
from torch import Tensor

from experiments.assemble import build
from experiments.entry_point import one_line_errors, status
from experiments.knobs import check_whole
from experiments.negative_controls import Control, controls
from experiments.tiny_drafters import NAMES, tiny_factory
from framework.conformance.verifier_checks import ROUNDING, SAMPLINGS
from framework.engine import Engine
from framework.enumeration import worst_total_variation
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.goodness_of_fit import continuation_law
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.tiny_models import tiny_target
from framework.verifiers.verifier import Guarantee, Verifier

CONF = Path(__file__).parents[1] / "conf"
PROMPT = [1, 2, 1, 1, 2]
ROWS_PER_BATCH = 20_000
# What was accepted so far decides the next gamma, for all rows of a batch: few rows make it differ between batches,
# and are slow, so that one in so many of the samples must do.
ROWS_PER_ADAPTIVE_BATCH, ADAPTIVE_SHARE = 128, 10
LEAST_SAMPLES = 20_000  # with fewer, most continuations are too rare to be counted by themselves
GREEDY_SAMPLES = 1000  # at temperature 0 there is one continuation
MOST_CONTINUATIONS = 20_000  # that a chi-square test counts
# Knobs under which a policy moves within a few tokens; the others are those of its yaml.
LIVELY = {"c": 0.3, "forgetting": 0.5, "probe_every": 2, "threshold": 0.9}
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
        gammas: every gamma that the policy chose, in ascending order.
        stopped: whether it ended a draft in between.
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
    gammas: tuple[int, ...]
    stopped: bool

    @property
    def idle(self) -> bool:
        """Whether a policy is to be shown that did nothing; what is always accepted gives it no cause at T=0."""
        return self.gamma_policy != "fixed" and self.sampling != "T=0" and len(self.gammas) < 2 and not self.stopped

    @property
    def holds(self) -> bool:
        """Whether a rule that claims to be exact is, under a policy that acts; of a lossy one nothing is claimed."""
        if self.p_value is None:
            return True
        return self.total_variation <= ROUNDING and self.p_value > FALSE_ALARM and not self.idle


class _Watched:
    """A gamma policy that keeps what it decided."""

    def __init__(self, policy: GammaPolicy):
        self.policy = policy
        self.gammas: set[int] = set()
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def next_gamma(self) -> int:
        gamma = self.policy.next_gamma()
        self.gammas.add(gamma)
        return gamma

    @property
    def keep_drafting(self) -> Callable[[Tensor], Tensor] | None:
        return None if self.policy.keep_drafting is None else self._asked

    def _asked(self, confidence: Tensor) -> Tensor:
        assert self.policy.keep_drafting is not None
        goes_on = self.policy.keep_drafting(confidence)
        self.stopped |= not bool(goes_on.all())
        return goes_on


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
        """Every other gamma policy with every drafter it can steer and its first exact rule, drawing and greedy."""
        others = [policy for policy in nodes("gamma") if policy != "fixed"]
        exact = [name for name, rule in self.verifiers.items() if rule.guarantee is Guarantee.EXACT]
        for drafter, policy, sampling in product(self.drafters, others, ("T=1", "T=0")):
            if self._policy(policy).keep_drafting is not None and not hasattr(self.drafters[drafter], "keep_drafting"):
                continue  # it is never asked
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
        watched = _Watched(self._policy(policy))
        tokens = self._sample(drafter, verifier, watched, setting) if exact else []
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
            gammas=tuple(sorted(watched.gammas)),
            stopped=watched.stopped,
        )

    def _sample(self, drafter: str, verifier: str, policy: _Watched, sampling: Sampling) -> list[list[int]]:
        """Continuations of one prompt: prefill's token and a round, or where gamma may change two."""
        engine = Engine(
            target=self.target,
            drafter=self.drafters[drafter],
            verifier=self.verifiers[verifier],
            gamma_policy=policy,
            sampling=sampling,
        )
        fixed = isinstance(policy.policy, Fixed)
        samples = self.samples if fixed else max(LEAST_SAMPLES, self.samples // ADAPTIVE_SHARE)
        samples = min(samples, GREEDY_SAMPLES) if sampling.greedy else samples
        rows = ROWS_PER_BATCH if fixed else ROWS_PER_ADAPTIVE_BATCH
        stopping, tokens = Stopping(max_new_tokens=self.gamma + (2 if fixed else 4)), []
        for first in range(0, samples, rows):
            seeds = list(range(first, min(first + rows, samples)))
            tokens += engine.generate([PROMPT] * len(seeds), stopping=stopping, seeds=seeds).tokens
        return tokens

    def _policy(self, name: str) -> GammaPolicy:
        node = nodes("gamma")[name].copy()
        gamma = self.gamma + (name != "fixed")
        ours = {"gamma": gamma, "max_gamma": gamma, "initial": gamma} | LIVELY
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
    table.caption = (
        "total variation by enumeration, p of the chi-square test over so many sequences; "
        f"broken: total variation > {ROUNDING:g}, or p < {FALSE_ALARM:g}"
    )
    settings = list(dict.fromkeys(cell.sampling for cell in cells))
    for part in parts:
        table.add_column(part.replace("_", " "))
    for setting in settings:
        samples = max(cell.samples for cell in cells if cell.sampling == setting)
        table.add_column(f"{setting}\n{samples:,}")
    rows: dict[tuple[str, ...], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(tuple(getattr(cell, part) for part in parts), {})[cell.sampling] = cell
    for names, by_setting in rows.items():
        table.add_row(*names, *(_words(by_setting[setting]) if setting in by_setting else "" for setting in settings))
    return table


def _words(cell: Cell) -> str:
    if cell.p_value is None:
        return f"lossy {cell.total_variation:.2f}"
    words = f"{cell.total_variation:.0e}  p={cell.p_value:.2g}" + (" idle" if cell.idle else "")
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
    path = Path(HydraConfig.get().runtime.output_dir) / "proof.json"
    with one_line_errors(interrupted=f"what was shown so far is in {path}"):
        check_whole("samples", cfg.samples, least=LEAST_SAMPLES, most=10**8)
        check_whole("vocabulary", cfg.vocabulary, least=3, most=MOST_CONTINUATIONS)
        check_whole("max_gamma", cfg.max_gamma, least=1, most=10)
        if cfg.vocabulary ** (cfg.max_gamma + 4) > MOST_CONTINUATIONS:
            raise ValueError(
                f"vocabulary is {cfg.vocabulary} and max_gamma {cfg.max_gamma}; allowed: vocabulary to the power of "
                f"max_gamma + 4 at most {MOST_CONTINUATIONS:,}, which is how many continuations are counted"
            )
        prover = Prover(samples=cfg.samples, vocabulary=cfg.vocabulary, gamma=cfg.max_gamma)
        matrix: list[Cell] = []
        policies: list[Cell] = []
        found: list[Caught] = []
        with status("proving") as doing:
            for cells, source in ((matrix, prover.matrix()), (policies, prover.policies())):
                for cell in source:
                    cells.append(cell)
                    _save(path, matrix + policies, found)
                    done = f"{len(matrix + policies)} cells"
                    doing.update(f"{done}: {cell.drafter}, {cell.verifier}, {cell.gamma_policy}, {cell.sampling}")
            doing.update("putting in faults")
            found += [Caught.of(control) for control in controls()]
            _save(path, matrix + policies, found)
        console = Console(width=None if sys.stdout.isatty() else 170)
        console.print(cell_table("Drafters and verifiers", matrix, ("drafter", "verifier")))
        console.print(cell_table("Gamma policies", policies, ("drafter", "gamma_policy")))
        console.print(control_table(found))
        parts: list[Cell | Caught] = [*matrix, *policies, *found]
        broken = sum(not part.holds for part in parts)
        exact = sum(cell.exact for cell in matrix + policies)
        lossy = len(matrix + policies) - exact
        console.print(
            f"{path}: {exact} cells that claim to be exact and {len(found)} faults, {broken} of which do not hold; "
            f"{lossy} lossy cells, of which nothing is claimed"
        )
        if broken:
            sys.exit(1)


def _save(path: Path, cells: Sequence[Cell], found: Sequence[Caught]) -> None:
    path.write_text(json.dumps({"cells": list(map(asdict, cells)), "controls": list(map(asdict, found))}, indent=1))


if __name__ == "__main__":
    main()
