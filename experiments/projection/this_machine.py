"""Figures of this machine, by timing a copy, a sum, a matrix product and the smallest product for seconds."""

import os
from pathlib import Path

import torch

from experiments.gpu.facts import operations_per_second
from experiments.gpu.profiling import copied_bytes_per_second, seconds_each
from experiments.projection.hardware import BYTES, Hardware
from experiments.results.provenance import provenance

CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # of Linux, such as 32768K
SMALL = 64  # rows and columns of the smallest product


def measure_hardware(device: torch.device, dtype: str, *, mebibytes: int, product: int) -> Hardware:
    """Time a device.

    Args:
        device: the device.
        dtype: dtype of the products.
        mebibytes: size of the memory read, several times that of a cache.
        product: rows and columns of the matrices.

    Raises:
        ValueError: the device has no arithmetic in this dtype.
    """
    on_cpu, facts = device.type == "cpu", provenance(device)["machine"]
    cache = _cache_megabytes() if on_cpu else 0.0
    read = max(copied_bytes_per_second(mebibytes, device), _summed_bytes_per_second(mebibytes, device))
    cached = _summed_bytes_per_second(max(1, int(cache / 4)), device) if cache else 0.0
    memory = _installed_bytes() if on_cpu else torch.cuda.get_device_properties(device).total_memory
    return Hardware(
        name=f"{facts['processor']}, {torch.get_num_threads()} threads" if on_cpu else facts["device"],
        source="measured here by PyTorch, eager",
        gigabytes=memory / 1e9,
        gigabytes_per_second=read / 1e9,
        teraflops={dtype: operations_per_second(product, device, dtype=_torch_dtype(dtype)) / 1e12},
        launch_microseconds=1e6 * _smallest_product(device, _torch_dtype(dtype)),
        cache_megabytes=cache,
        cache_gigabytes_per_second=cached / 1e9,
    )


def _torch_dtype(dtype: str) -> torch.dtype:
    if dtype == "float8":
        timed = ", ".join(each for each in BYTES if each != dtype)
        raise ValueError(f"dtype is float8, in which PyTorch has no plain product; allowed with this_machine: {timed}")
    return getattr(torch, dtype)


def _summed_bytes_per_second(mebibytes: int, device: torch.device) -> float:
    """Bytes read per second by a sum; unlike a copy, it writes nothing."""
    numbers = torch.ones(mebibytes * 2**18, dtype=torch.float32, device=device)
    return numbers.nbytes / seconds_each(numbers.sum, device, times=10)


def _smallest_product(device: torch.device, dtype: torch.dtype) -> float:
    row, matrix = (torch.ones(rows, SMALL, dtype=dtype, device=device) for rows in (1, SMALL))
    return seconds_each(lambda: torch.mm(row, matrix), device, times=200)


def _cache_megabytes() -> float:
    """Size of the last-level cache; 0 if the system does not state it."""
    try:
        return int(CACHE.read_text().strip().removesuffix("K")) * 1024 / 1e6
    except (OSError, ValueError):
        return 0.0


def _installed_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
