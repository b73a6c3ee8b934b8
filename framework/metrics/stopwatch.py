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
    """Sums the seconds spent in named stages: by the host's clock on a CPU, by the device's events on a GPU."""

    def __init__(self, device: torch.device):
        self._device = device
        self._seconds: dict[str, float] = defaultdict(float)
        self._gpu = None if device.type == "cpu" else torch.get_device_module(device)
        self._events: list[tuple[str, torch.Event, torch.Event]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a block; the times of stages with the same name add up."""
        if self._gpu is None:
            begin_seconds = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - begin_seconds
        else:
            # Events are queued with the kernels, so timing adds no synchronisation.
            begin, end = self._gpu.Event(enable_timing=True), self._gpu.Event(enable_timing=True)
            begin.record(self._gpu.current_stream(self._device))
            yield
            end.record(self._gpu.current_stream(self._device))
            self._events.append((name, begin, end))

    def seconds(self) -> dict[str, float]:
        """Seconds per stage so far; waits for the device."""
        if self._gpu is not None:
            self._gpu.synchronize(self._device)
            for name, begin, end in self._events:
                self._seconds[name] += begin.elapsed_time(end) / 1000
            self._events.clear()
        return dict(self._seconds)
