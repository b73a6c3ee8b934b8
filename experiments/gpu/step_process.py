"""The process that runs the steps: `python -m experiments.gpu.step_process FOLDER`, where FOLDER has their settings."""

import faulthandler
import gc
import sys
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch

from experiments.gpu.all_steps import STEP_FAILED, unfinished
from experiments.gpu.findings import GRACE, Bounds, Findings, StepResult, load, store
from framework.kernels import compiled_graphs
from framework.models.pretrained import device_named

Step = Callable[[Findings, Mapping[str, Any], torch.device], None]
"""A step: adds its checks to the findings, given its sizes and the device."""

EVERY_GPU = "every GPU"


def run_steps(folder: Path) -> int:
    """Run the unfinished steps in order, and keep each result; stops after a failed step."""
    record = load(folder)
    settings = record["settings"]
    device = device_named(settings["device"])
    on_gpu = device.type == "cuda"
    record["device"] = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    store(record, folder)
    chosen = {"auto": "full" if on_gpu else "miniature"}.get(settings["sizes"], settings["sizes"])
    sizes, names = settings[chosen], settings["steps"]
    begins = accumulate((sizes[step]["seconds"] for step in names), initial=record["begun"])
    planned = dict(zip(names, begins, strict=False))
    with patch.dict(compiled_graphs.BACKENDS, {device.type: sizes["backend"]} if sizes["backend"] else {}):
        for step in unfinished(names, folder):

            def save(result: StepResult, step: str = step) -> None:
                record["steps"][step] = result
                store(record, folder)

            # A step may use time that earlier steps saved; after an overrun it still has half of its own.
            own = sizes[step]["seconds"]
            deadline = max(planned[step] + own, time.time() + own / 2)
            # Bounds are those of the full sizes.
            bounds = bounds_of(settings["bounds"], step, record["device"]) if chosen == "full" else {}
            findings = Findings(bounds=bounds, on_gpu=on_gpu, deadline=deadline, save=save)
            if not ran(step, findings, sizes[step], device, deadline):
                return STEP_FAILED
    return 0


def ran(step: str, findings: Findings, sizes: Mapping[str, Any], device: torch.device, deadline: float) -> bool:
    """Run one step; returns whether it ended without an error of its own. A step that hangs ends the process."""
    begun = time.time()
    print(f"\n{step}: at most {deadline - begun:.0f} s", flush=True)
    faulthandler.dump_traceback_later(deadline - begun + GRACE, exit=True)
    try:
        with torch.no_grad():
            resolve_name(f"experiments.gpu.{step}").run(findings, sizes, device)
    except Exception as error:
        findings.fail(step, error)
    faulthandler.cancel_dump_traceback_later()
    findings.end(time.time() - begun)
    if findings.gpu_failed or step in findings.result.errors:  # the GPU may take no further calls
        return False
    torch._dynamo.reset()  # compiled graphs hold their models
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return True


def bounds_of(bounds: Mapping[str, Any], step: str, device: str) -> Bounds:
    """Bounds of a step: those of every GPU, and those of this device alone."""
    return {**bounds[EVERY_GPU].get(step, {}), **bounds.get(device, {}).get(step, {})}


if __name__ == "__main__":
    try:
        sys.exit(run_steps(Path(sys.argv[1])))
    except ValueError as error:  # the device
        sys.exit(f"{type(error).__name__}: {error}")
