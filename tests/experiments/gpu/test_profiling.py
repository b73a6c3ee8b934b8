"""Work of a GPU, counted from events like the profiler's."""

from dataclasses import dataclass

import pytest
import torch
from torch.autograd import DeviceType

from experiments.gpu.profiling import profiled, seconds_each, waits_of_host, work_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Event:
    """An event with the methods of the profiler's own."""

    label: str
    device: DeviceType = DeviceType.CUDA
    nanoseconds: int = 0
    annotates: bool = False

    def name(self) -> str:
        return self.label

    def device_type(self) -> DeviceType:
        return self.device

    def duration_ns(self) -> int:
        return self.nanoseconds

    def is_user_annotation(self) -> bool:
        return self.annotates


def test_kernels_copies_and_launches_are_counted_apart():
    runs = [
        (12, Event("flash_fwd_splitkv_kernel<...>", nanoseconds=2_500)),
        (4, Event("triton_poi_fused_add_0", nanoseconds=2_500)),
        (4, Event("triton_poi_fused_add_0", DeviceType.CPU)),  # its launch
        (2, Event("Memcpy DtoH (Device -> Pageable)", nanoseconds=2_500)),
        (1, Event("Memcpy DtoH (Device -> Pinned)")),
        (3, Event("Memcpy HtoD (Pageable -> Device)")),
        (7, Event("Memset (Device)")),
        (1, Event("Torch-Compiled Region: 0/0", nanoseconds=99_000, annotates=True)),
        (6, Event("cudaGraphLaunch", DeviceType.CPU)),
        (16, Event("cudaLaunchKernel", DeviceType.CPU)),
    ]
    work = work_of([event for count, event in runs for _ in range(count)])
    assert work.kernels.total() == 16 and work.attention == ["flash_fwd_splitkv_kernel<...>"]
    assert (work.to_host, work.to_device, work.graph_launches) == (3, 3, 6)
    assert work.seconds == pytest.approx(40e-6)
    assert work.times == pytest.approx({"flash_fwd_splitkv_kernel<...>": 30e-6, "triton_poi_fused_add_0": 10e-6})


def test_on_a_cpu_there_is_time_and_nothing_else():
    numbers = torch.ones(64)
    work = profiled(lambda: numbers.sum().item(), CPU)
    assert work.seconds > 0 and not work.kernels and (work.to_host, work.graph_launches) == (0, 0)
    with waits_of_host(CPU) as waits:
        numbers.sum().item()
    assert waits == []


def test_warm_up_runs_are_not_timed():
    calls = []
    assert seconds_each(lambda: calls.append(1), CPU, times=5) > 0
    assert len(calls) == 8
