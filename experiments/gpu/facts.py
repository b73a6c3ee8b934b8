"""The step `facts`: versions, clocks, and the throughput of the GPU's memory and matrix units."""

from collections.abc import Mapping
from typing import Any

import torch

from experiments.gpu.findings import Findings
from experiments.gpu.profiling import copied_bytes_per_second, seconds_each
from experiments.results.provenance import driver_state, provenance


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    findings.note(**provenance(device))
    findings.measure("copy bandwidth", copied_bytes_per_second(sizes["copied_mib"], device) / 1e12, "TB/s")
    size = sizes["product"]
    findings.measure("bf16 product", operations_per_second(size, device) / 1e12, f"TFLOP/s at {size}³")
    if device.type == "cuda":
        findings.note(after_the_product=driver_state(device))


def operations_per_second(size: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> float:
    """Arithmetic operations per second of a product of two square matrices of random numbers."""
    left, right = torch.randn(2, size, size, device=device, dtype=dtype)
    return 2 * size**3 / seconds_each(lambda: left @ right, device, times=10)
