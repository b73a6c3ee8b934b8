"""Work of a GPU, by the profiler: kernels, copies, graph launches; places where the host waits; memory."""

import gc
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from framework.decoding.round_summary import StepSummary
from framework.metrics.stopwatch import Clock

ATTENTION = re.compile(r"flash|fmha|attention|attn|sdpa", re.IGNORECASE)
GRAPH_LAUNCH, TO_HOST, TO_DEVICE = "cudaGraphLaunch", "Memcpy DtoH", "Memcpy HtoD"


@dataclass(frozen=True)
class DeviceWork:
    """Work of a GPU while something ran; all zero on a CPU, but for its seconds.

    Attributes:
        kernels: number of runs by kernel.
        times: seconds by kernel, over all its runs.
        to_host: copies from the GPU to the host.
        to_device: copies from the host to the GPU.
        graph_launches: launches of CUDA graphs.
        seconds: time of all kernels together, without the gaps between them; on a CPU, the whole time.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    to_host: int = 0
    to_device: int = 0
    graph_launches: int = 0
    seconds: float = 0.0

    @property
    def attention(self) -> list[str]:
        """Names of attention kernels."""
        return sorted(name for name in self.kernels if ATTENTION.search(name))


def profiled(run: Callable[[], object], device: torch.device) -> DeviceWork:
    """Run something once, and return the work that it gave to the GPU."""
    on_gpu = device.type == "cuda"
    clock = Clock(device)
    clock.wait()
    begun = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        run()
        clock.wait()
    seconds = time.perf_counter() - begun
    if not on_gpu:
        return DeviceWork(seconds=seconds)
    # `key_averages` takes 60 microseconds per event, and a round of eager kernels has thousands.
    return work_of(profiler.profiler.kineto_results.events())


def work_of(events: Iterable[Any]) -> DeviceWork:
    """Sum up a profile's events (`torch.autograd._KinetoEvent`)."""
    kernels: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in events:
        name = event.name()
        if event.device_type() != DeviceType.CUDA:
            counts[name] += 1
        elif name.startswith(("Memcpy", "Memset")):
            counts[name.partition(" (")[0]] += 1
        elif not event.is_user_annotation():
            kernels[name] += 1
            nanoseconds[name] += event.duration_ns()
    times = Counter({name: count / 1e9 for name, count in nanoseconds.items()})
    return DeviceWork(kernels, times, counts[TO_HOST], counts[TO_DEVICE], counts[GRAPH_LAUNCH], sum(times.values()))


@contextmanager
def waits_of_host(device: torch.device) -> Iterator[list[str]]:
    """Collect places FILE:LINE where the host waits for the GPU, except for a round's summary.

    The list is filled at the end of the block; it stays empty on a CPU.
    """
    found: list[str] = []
    if device.type != "cuda":
        yield found
        return
    unpack = StepSummary.unpack.__func__  # type: ignore[attr-defined]

    def exempt(cls: type[StepSummary], packed: torch.Tensor) -> StepSummary:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return unpack(cls, packed)
        finally:
            torch.cuda.set_sync_debug_mode("warn")

    # Warnings name every place; the mode "error" would end the round at the first one.
    with warnings.catch_warnings(record=True) as caught, patch.object(StepSummary, "unpack", classmethod(exempt)):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode("default")
            waits = [each for each in caught if "synchronizing CUDA operation" in str(each.message)]
            found += [f"{Path(each.filename).name}:{each.lineno}" for each in waits]


def seconds_each(run: Callable[[], object], device: torch.device, *, times: int) -> float:
    """Seconds of one run among several that are queued one after the other, after three that warm up."""
    clock = Clock(device)
    for _ in range(3):
        run()
    clock.wait()
    begin = clock.now()
    for _ in range(times):
        run()
    end = clock.now()
    clock.wait()
    return clock.seconds(begin, end) / times


def copied_bytes_per_second(mebibytes: int, device: torch.device) -> float:
    """Bytes read and written per second by a copy of that size on the device."""
    source = torch.ones(mebibytes * 2**20, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * source.numel() / seconds_each(lambda: copy.copy_(source), device, times=10)


def memory(device: torch.device) -> dict[str, int]:
    """Bytes of a GPU's memory in use and in the allocator's hands; zero on a CPU."""
    gc.collect()
    Clock(device).wait()
    if device.type != "cuda":
        return {"allocated": 0, "reserved": 0}
    return {"allocated": torch.cuda.memory_allocated(device), "reserved": torch.cuda.memory_reserved(device)}


def reset_peak(device: torch.device) -> None:
    """Begin to count the peak of a GPU's memory anew."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> dict[str, int]:
    """Most bytes in use, and in the allocator's hands; zero on a CPU."""
    if device.type != "cuda":
        return {"allocated": 0, "reserved": 0}
    return {
        "allocated": torch.cuda.max_memory_allocated(device),
        "reserved": torch.cuda.max_memory_reserved(device),
    }
