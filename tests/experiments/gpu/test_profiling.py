"""Work of a GPU, counted from rows such as the profiler's."""

from dataclasses import dataclass

import pytest
import torch
from torch.autograd import DeviceType

from experiments.gpu.profiling import profiled, seconds_each, waits_of_host, work_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    key: str
    count: int
    device_type: DeviceType = DeviceType.CUDA
    self_device_time_total: float = 0.0
    is_user_annotation: bool = False


def test_kernels_copies_and_launches_are_counted_apart():
    rows = [
        Row("flash_fwd_splitkv_kernel<...>", 12, self_device_time_total=30.0),
        Row("triton_poi_fused_add_0", 4, self_device_time_total=10.0),
        Row("triton_poi_fused_add_0", 4, DeviceType.CPU),  # its launch
        Row("Memcpy DtoH (Device -> Pageable)", 2, self_device_time_total=5.0),
        Row("Memcpy DtoH (Device -> Pinned)", 1),
        Row("Memcpy HtoD (Pageable -> Device)", 3),
        Row("Memset (Device)", 7),
        Row("Torch-Compiled Region: 0/0", 1, self_device_time_total=99.0, is_user_annotation=True),
        Row("cudaGraphLaunch", 6, DeviceType.CPU),
        Row("cudaLaunchKernel", 16, DeviceType.CPU),
    ]
    work = work_of(rows)
    assert work.kernels.total() == 16 and work.attention == ["flash_fwd_splitkv_kernel<...>"]
    assert (work.to_host, work.to_device, work.graph_launches) == (3, 3, 6)
    assert work.seconds == pytest.approx(40e-6)


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
