"""Provenance of a record: everything needed to repeat its run."""

import os
import platform
import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "hydra-core", "omegaconf", "wandb", "nltk", "numpy")

DRIVER_STATE = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.draw,power.limit,temperature.gpu"


def provenance(device: torch.device) -> dict[str, Any]:
    """Command, commit, package versions and hardware, as JSON values."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD") + ("+changes" if _git("status", "--porcelain", "-uno") else ""),
        "versions": {"python": platform.python_version()} | versions(*PACKAGES),
        "machine": machine(device) | (gpu_facts(device) if device.type == "cuda" else {}),
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Processor, cores, threads in use and device."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of installed packages by name."""
    return {name: _version(name) for name in packages}


def gpu_facts(device: torch.device) -> dict[str, Any]:
    """Versions of CUDA and driver, properties, clocks, TF32 setting and enabled attention kernels."""
    properties = torch.cuda.get_device_properties(device)
    state = driver_state(device)
    kernels = ("flash", "mem_efficient", "cudnn", "math")
    return {
        "cuda": torch.version.cuda,
        "driver": state.get("driver_version"),
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_gib": properties.total_memory / 2**30,
        "state": state,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "attention_kernels": [each for each in kernels if getattr(torch.backends.cuda, f"{each}_sdp_enabled")()],
    }


def driver_state(device: torch.device) -> dict[str, str]:
    """Version of a GPU's driver, its clocks, power and temperature; empty without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={DRIVER_STATE}", "--format=csv,noheader"]
    if uuid := getattr(torch.cuda.get_device_properties(device), "uuid", None):
        command.append(f"--id=GPU-{uuid}")
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(DRIVER_STATE.split(","), map(str.strip, shown.splitlines()[0].split(",")), strict=False))


def begin_peak_memory(device: torch.device) -> None:
    """Forget earlier peaks of all GPUs; the peak of a CPU's process cannot be forgotten."""
    if device.type == "cuda":
        for number in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(number)


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peaks in MiB: tensors and the allocator's memory, summed over all GPUs; on a CPU, the whole process so far."""
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count())
        return {
            "peak_memory_mb": sum(map(torch.cuda.max_memory_allocated, gpus)) / 2**20,
            "peak_reserved_mb": sum(map(torch.cuda.max_memory_reserved, gpus)) / 2**20,
        }
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_mb": most / (2**20 if sys.platform == "darwin" else 2**10)}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> str:
    try:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
