"""Measurement plan: amount, batches and candidate points."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.measurement.experts import NO_EXPERTS
from experiments.results.record import Record
from experiments.tracking.tracker import JsonlTracker, Point, Tracker
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.tally import Tally
from framework.prompts.prompt_set import PromptSet


@dataclass(frozen=True)
class Arrivals:
    """A Poisson process of requests, and the bound on their latency.

    Attributes:
        rate: requests per second.
        latency_bound: seconds from arrival to end within which a request counts towards goodput.
        seed: seed of the process.
    """

    rate: float
    latency_bound: float
    seed: int

    def moments(self, num_prompts: int, num_rows: int) -> list[float]:
        """Seconds at which prompts arrive, ascending: one for every row at once, then the others."""
        at_once = min(num_rows, num_prompts)
        gaps = np.random.default_rng(self.seed).exponential(1 / self.rate, num_prompts - at_once)
        return [0.0] * at_once + gaps.cumsum().tolist()


@dataclass(frozen=True)
class Plan:
    """Settings of a measurement that are the same for every point.

    Attributes:
        prompt_set: prompts in decoding order, with the numbers of truncated and skipped ones.
        batch_size: rows per batch.
        stopping: stopping criteria of a row.
        repeats: timings per batch.
        seed: prompt i decodes with seed + i.
        hugging_face: whether to time Hugging Face's `generate` as well (batch size 1 only).
        teacher_forced: whether to count alpha at every position of the target's text, too (chains only).
        run_completions: whether to run the completions of prompts with their tests.
        compiled: whether rounds and the baseline's steps are compiled graphs.
        refill: whether a finished row takes the next prompt, so that all prompts are one batch.
        arrivals: process by which the prompts arrive in a further run of every decoder; None: no such run.
    """

    prompt_set: PromptSet
    batch_size: int
    stopping: Stopping
    repeats: int
    seed: int
    hugging_face: bool
    teacher_forced: bool = False
    run_completions: bool = False
    compiled: bool = False
    refill: bool = False
    arrivals: Arrivals | None = None

    @property
    def prompts_per_batch(self) -> int:
        """Prompts of a batch, which share one time."""
        return max(1, len(self.prompt_set.prompts)) if self.refill else self.batch_size

    def batches(self) -> list["Batch"]:
        """The prompts in order, prompts_per_batch of them at a time."""
        prompts, size = self.prompt_set.prompts, self.prompts_per_batch
        rows = list(range(len(prompts)))
        return [
            Batch(
                number=number,
                rows=chunk,
                prompts=[list(prompts[row].tokens) for row in chunk],
                seeds=[self.seed + row for row in chunk],
                num_rows=self.batch_size if self.refill else None,
            )
            for number, chunk in enumerate(rows[i : i + size] for i in range(0, len(rows), size))
        ]


@dataclass(frozen=True)
class Batch:
    """Prompts decoded in one generation: their indices in the prompt set, token ids, and one seed each.

    Attributes:
        num_rows: rows that decode at the same time and, once finished, take the next prompt; None: one per prompt.
    """

    number: int
    rows: list[int]
    prompts: list[list[int]]
    seeds: list[int]
    num_rows: int | None = None

    @property
    def beginning(self) -> "Batch":
        """The prompts with which the generation begins, one per row."""
        first = slice(self.num_rows)
        return Batch(self.number, self.rows[first], self.prompts[first], self.seeds[first])


class Candidate:
    """One point under measurement: its engine and its results so far."""

    def __init__(self, point: Point, engine: Engine):
        self.point = point
        self.engine = engine
        self.tracker: Tracker = JsonlTracker()
        self.tally = engine.new_tally(detailed=True)
        self.inner_tally: Tally | None = None  # of a drafter that runs rounds of its own
        self.teacher_forced: Tally | None = None  # alpha at every position, if the plan asks for it
        self.divergences: list[float] = []
        self.experts = NO_EXPERTS
        self.rows: list[dict] = []
        self.record: Record | None = None
        self.error: Exception | None = None

    def raise_error(self) -> None:
        """Raise this candidate's error, if any; called after the other candidates are measured."""
        if self.error:
            raise self.error

    @property
    def options(self) -> list[Any]:
        """Options of drafter and verifier, as JSON values."""
        config, name = self.point.config, self.point.settings.get("drafter")
        return [config.get("drafters", {}).get(name, config.get("drafter")), config.get("verifier")]

    @property
    def is_alive(self) -> bool:
        """Whether it is under measurement: neither failed nor finished."""
        return not self.error and not self.record

    def end(self, error: Exception) -> None:
        """Store the error that ends this candidate and pass it to the tracker."""
        self.error = error
        self.tracker.fail(error)

    @contextmanager
    def ended_by_errors(self) -> Iterator[None]:
        """End this candidate, and no other, on an exception in the block."""
        try:
            yield
        except Exception as error:
            self.end(error)


def alive(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates still under measurement."""
    return [candidate for candidate in candidates if candidate.is_alive]
