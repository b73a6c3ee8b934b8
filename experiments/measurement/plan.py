"""Measurement plan: amount, batches and candidate points."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from experiments.measurement.experts import NO_EXPERTS
from experiments.results.record import Record
from experiments.tracking.tracker import JsonlTracker, Point, Tracker
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.metrics.tally import Tally
from framework.prompts.prompt_set import PromptSet


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
        compiled: whether rounds and the baseline's steps are compiled graphs.
    """

    prompt_set: PromptSet
    batch_size: int
    stopping: Stopping
    repeats: int
    seed: int
    hugging_face: bool
    compiled: bool = False

    def batches(self) -> list["Batch"]:
        """The prompts in order, batch_size of them at a time."""
        prompts = self.prompt_set.prompts
        rows = list(range(len(prompts)))
        return [
            Batch(
                number=number,
                rows=chunk,
                prompts=[list(prompts[row].tokens) for row in chunk],
                seeds=[self.seed + row for row in chunk],
            )
            for number, chunk in enumerate(rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size))
        ]


@dataclass(frozen=True)
class Batch:
    """Prompts decoded together: their indices in the prompt set, token ids, and one seed each."""

    number: int
    rows: list[int]
    prompts: list[list[int]]
    seeds: list[int]


class Candidate:
    """One point under measurement: its engine and its results so far."""

    def __init__(self, point: Point, engine: Engine):
        self.point = point
        self.engine = engine
        self.tracker: Tracker = JsonlTracker()
        self.tally = engine.new_tally(detailed=True)
        self.inner_tally: Tally | None = None  # of a drafter that runs rounds of its own
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
