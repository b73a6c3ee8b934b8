"""Times of the stages of a loop, measured outside the algorithms."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

Stage = Callable[[str], AbstractContextManager]
"""`Stopwatch.stage`, or `untimed`."""


def untimed(name: str) -> AbstractContextManager:
    """A stage without timing."""
    return nullcontext()


class Clock:
    """Clock of a device: host time on a CPU, queued events on a GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._gpu = None if device.type == "cpu" else torch.get_device_module(device)

    def now(self) -> Any:
        """The moment when all work queued so far is done; nothing waits for it."""
        if self._gpu is None:
            return time.perf_counter()
        event = self._gpu.Event(enable_timing=True)
        event.record(self._gpu.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Wait for all queued work."""
        if self._gpu is not None:
            self._gpu.synchronize(self._device)

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds between two moments, whose work is done."""
        return end - begin if self._gpu is None else begin.elapsed_time(end) / 1000


@dataclass(frozen=True)
class Block:
    """One run of a stage; `begin` and `end` are seconds since the first block began."""

    stage: str
    begin: float
    end: float


class _Timed(AbstractContextManager[None]):
    """A timed block, noted unless it fails; a class, since a generator costs more per block."""

    def __init__(self, name: str, clock: Clock, blocks: list[tuple[str, Any, Any]]):
        self._name, self._clock, self._blocks = name, clock, blocks

    def __enter__(self) -> None:
        self._begin = self._clock.now()

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._blocks.append((self._name, self._begin, self._clock.now()))


class Stopwatch:
    """Seconds spent in named stages, by the device's clock, and seconds per round, by the host's."""

    def __init__(self, device: torch.device, *, only: Collection[str] | None = None):
        """
        Args:
            device: device whose work is timed.
            only: names of the stages to time; None: all.
        """
        self._clock = Clock(device)
        self._only = only
        self._blocks: list[tuple[str, Any, Any]] = []
        self._seconds: dict[str, float] = defaultdict(float)
        self._num_summed = 0  # blocks that `_seconds` holds
        self._rounds: list[float] = []

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Time a block; the times of stages with the same name add up."""
        if self._only is not None and name not in self._only:
            return nullcontext()
        return _Timed(name, self._clock, self._blocks)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds of a stage that another process has timed."""
        if self._only is None or name in self._only:
            self._seconds[name] += seconds

    def end_round(self) -> None:
        """Note the moment when the host has a round's tokens; the first call notes when the first round begins."""
        self._rounds.append(time.perf_counter())

    @property
    def round_seconds(self) -> list[float]:
        """Seconds from each call of `end_round` to the next."""
        return [end - begin for begin, end in pairwise(self._rounds)]

    def blocks(self) -> list[Block]:
        """All timed runs of stages in order; waits for the device."""
        self._clock.wait()
        first = self._blocks[0][1] if self._blocks else None
        return [
            Block(name, *(self._clock.seconds(first, moment) for moment in moments)) for name, *moments in self._blocks
        ]

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far; waits for the device."""
        self._clock.wait()
        for name, begin, end in self._blocks[self._num_summed :]:
            self._seconds[name] += self._clock.seconds(begin, end)
        self._num_summed = len(self._blocks)
        return dict(self._seconds)
