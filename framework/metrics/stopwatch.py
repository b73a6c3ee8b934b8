"""Times of the stages of a loop, measured outside the algorithms."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

Stage = Callable[[str], AbstractContextManager]
"""`Stopwatch.stage`, or `untimed`."""


def untimed(name: str) -> AbstractContextManager:
    """A stage without timing."""
    return nullcontext()


class Stopwatch:
    """Sums the seconds spent in named stages: by the host's clock on a CPU, by CUDA events on a GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block; the times of stages with the same name add up."""
        if self._device.type == "cuda":
            # Events are queued with the kernels, so timing adds no synchronisation.
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(torch.cuda.current_stream(self._device))
            yield
            end.record(torch.cuda.current_stream(self._device))
            self._events.append((name, begin, end))
        else:
            begin_seconds = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begin_seconds

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far; waits for the device."""
        if self._events:
            torch.cuda.synchronize(self._device)
            for name, begin, end in self._events:
                self._seconds[name] += begin.elapsed_time(end) / 1000
            self._events.clear()
        return dict(self._seconds)
