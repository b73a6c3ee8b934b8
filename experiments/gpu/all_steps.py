"""The acceptance as a whole: runs its steps in processes of their own, and reports every line that failed."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from experiments.gpu.findings import FAILED, Check, StepResult, load, store
from experiments.gpu.plain_options import ROOT
from experiments.gpu.table import markdown

STEPS = ("facts", "exactness", "synchronisations", "graphs", "speed", "long_and_wide", "bf16")
SIZES = ("auto", "full", "miniature")
PAGE = "gpu_acceptance.md"
STEP_FAILED = 3  # exit status of a process that has ended, and kept, a failed step


def accept(settings: Mapping[str, Any], folder: Path) -> int:
    """Run all steps, or print the table of earlier results; returns the exit status.

    Args:
        settings: the values of conf/gpu_acceptance.yaml.
        folder: folder of the results, which is made.

    Raises:
        ValueError: a setting is wrong; the message names it.
        OSError: the folder cannot be written to, or has no results.
    """
    check(settings)
    if settings["results"] is not None:
        print(markdown(load(Path(settings["results"]))))
        return 0
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    store({"settings": settings, "begun": time.time(), "device": "", "steps": {}}, folder)
    run_all(settings["steps"], folder, run_steps)
    return report(folder)


def check(settings: Mapping[str, Any]) -> None:
    """
    Raises:
        ValueError: a step or the sizes are unknown; the message names the key.
    """
    steps = settings["steps"]
    if not isinstance(steps, list) or not steps or not set(steps) <= set(STEPS) or len(set(steps)) < len(steps):
        raise ValueError(f"steps is {steps!r}; allowed: a list of {', '.join(STEPS)}, each at most once")
    if settings["sizes"] not in SIZES:
        raise ValueError(f"sizes is {settings['sizes']!r}; allowed: {', '.join(SIZES)}")


def run_all(steps: list[str], folder: Path, run: Callable[[Path], int]) -> None:
    """Run the steps in a process, and start another after each failed step.

    After a CUDA error a process can use its GPU no more, so a failed step ends its process.

    Raises:
        ChildProcessError: no step began, because of the device or the installation.
    """
    while unfinished(steps, folder):
        status = run(folder)
        if not load(folder)["device"]:
            raise ChildProcessError(f"no step began: their process ended with status {status}, for the reason above")
        if status == STEP_FAILED or not (left := unfinished(steps, folder)):
            continue
        record = load(folder)
        result = record["steps"].setdefault(left[0], StepResult())
        result.checks.append(Check(left[0], f"its process ended with status {status}", "the step ends", FAILED))
        result.seconds = 0.0
        print(result.checks[-1].line, flush=True)
        store(record, folder)


def unfinished(steps: list[str], folder: Path) -> list[str]:
    """Steps without an end, in order."""
    done = load(folder)["steps"]
    return [step for step in steps if step not in done or done[step].seconds is None]


def run_steps(folder: Path) -> int:
    """Run the unfinished steps in another process; returns its exit status."""
    return subprocess.run([sys.executable, "-m", "experiments.gpu.step_process", str(folder)], cwd=ROOT).returncode


def report(folder: Path) -> int:
    """Write the table, and print what failed and what was left out; returns the exit status."""
    record = load(folder)
    (folder / PAGE).write_text(markdown(record), encoding="utf-8")
    results: dict[str, StepResult] = record["steps"]
    failures = [f"{step}: {line}" for step, result in results.items() for line in result.failures]
    left_out = [f"{step}: {part}" for step, result in results.items() for part in result.left_out]
    checks = sum(len(result.checks) for result in results.values())
    print(f"\n{folder}: {checks} checks on {record['device']} in {time.time() - record['begun']:.0f} s")
    for part in left_out:
        print(f"left out, {part}")
    for line in failures:
        print(line)
    print(f"{len(failures)} failed, {len(left_out)} parts were left out")
    return 1 if failures else 0
