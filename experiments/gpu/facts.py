"""The step `facts`: versions, clocks, and the throughput of the GPU's memory and matrix units."""

import subprocess
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from experiments.gpu.findings import Findings
from experiments.gpu.profiling import seconds_each
from experiments.results.provenance import provenance

QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu"
BACKENDS = ("flash_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled", "math_sdp_enabled")


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    findings.note(**provenance(device), torch=torch.__version__, transformers=transformers.__version__)
    findings.note(
        tf32=torch.backends.cuda.matmul.allow_tf32,
        float32_matmul_precision=torch.get_float32_matmul_precision(),
        **{name: getattr(torch.backends.cuda, name)() for name in BACKENDS if hasattr(torch.backends.cuda, name)},
    )
    if device.type == "cuda":
        findings.note(**gpu_facts(device))
    findings.measure("copy bandwidth", copied_bytes_per_second(sizes["copied_mib"], device) / 1e12, "TB/s")
    size = sizes["product"]
    findings.measure("bf16 product", operations_per_second(size, device) / 1e12, f"TFLOP/s at {size}³")
    if device.type == "cuda":
        findings.note(after_the_product=smi(device))


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """The GPU's properties, and what its driver says."""
    properties = torch.cuda.get_device_properties(device)
    state = smi(device)
    return {
        "cuda": torch.version.cuda,
        "driver": state.get("driver_version"),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / 2**30,
        "idle": state,
    }


def smi(device: torch.device) -> dict[str, str]:
    """The driver's version, clocks, power and temperature; empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    if uuid := getattr(torch.cuda.get_device_properties(device), "uuid", None):
        command.append(f"--id=GPU-{uuid}")
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(QUERY.split(","), map(str.strip, shown.splitlines()[0].split(",")), strict=False))


def copied_bytes_per_second(mebibytes: int, device: torch.device) -> float:
    """Bytes read and written per second by a copy of that size on the device."""
    source = torch.ones(mebibytes * 2**20, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * source.numel() / seconds_each(lambda: copy.copy_(source), device, times=10)


def operations_per_second(size: int, device: torch.device) -> float:
    """Arithmetic operations per second of a product of two square matrices of random numbers."""
    left, right = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / seconds_each(lambda: left @ right, device, times=10)
