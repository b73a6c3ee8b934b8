"""Checks of a step: what was measured, its bound, and whether it holds."""

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HOLDS, FAILED, MEASURED, NOT_MEASURED = "holds", "FAILED", "measured", "not measured"
NO_GPU = "no GPU"
GRACE = 60.0  # seconds past a step's deadline before its process is killed
GPU_ERRORS = ("CUDA error", "Error [CUDA]", "CUBLAS_STATUS", "CUDNN_STATUS")  # after these a process has no GPU
FILE = "gpu_acceptance.json"

Bounds = Mapping[str, Mapping[str, float]]
"""Bounds of a step, `at_least` and `at_most`, by the name of a check or of a quantity."""


@dataclass(frozen=True)
class Check:
    """One line of the acceptance.

    Attributes:
        name: "SUBJECT: QUANTITY", or the quantity alone.
        measured: the measured value in words; the reason if it was not measured.
        bound: the bound in words; "" without one.
        verdict: HOLDS, FAILED, MEASURED (without a bound) or NOT_MEASURED.
    """

    name: str
    measured: str
    bound: str
    verdict: str

    @property
    def line(self) -> str:
        bound = f" ({self.bound})" if self.bound else ""
        return f"{self.verdict:12} {self.name}: {self.measured}{bound}"


@dataclass
class StepResult:
    """Checks, facts and errors of one step, stored as JSON.

    Attributes:
        checks: in the order in which they were made.
        facts: further values, for readers.
        left_out: parts that the step's time did not allow.
        errors: traceback of every part that failed, by part, or by the step's own name.
        seconds: duration; None: the step has not ended.
    """

    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "StepResult":
        """Result from its JSON values."""
        return cls(**{**values, "checks": [Check(**check) for check in values["checks"]]})

    @property
    def failures(self) -> list[str]:
        """Lines that failed."""
        return [check.line for check in self.checks if check.verdict == FAILED]


class Findings:
    """The growing result of a step; every change is saved at once."""

    def __init__(self, *, bounds: Bounds, on_gpu: bool, deadline: float, save: Callable[[StepResult], None]):
        """
        Args:
            bounds: bounds of the step's checks on this device.
            on_gpu: whether checks that need a GPU can be made.
            deadline: time in seconds since the epoch after which no part begins.
            save: called after every change.
        """
        self.result = StepResult()
        self.gpu_failed = False
        self._bounds, self._on_gpu, self._deadline, self._save = bounds, on_gpu, deadline, save
        self._longest = 0.0  # seconds of a part so far

    def measure(self, name: str, value: float, unit: str = "") -> None:
        """Judge a number by its bound; only a GPU's number counts."""
        bound = self._bounds.get(name, self._bounds.get(name.rpartition(": ")[2], {}))
        words = " and ".join(f"{kind.replace('_', ' ')} {limit:g}" for kind, limit in bound.items())
        holds = bound.get("at_least", value) <= value <= bound.get("at_most", value)
        verdict = (HOLDS if holds else FAILED) if bound else MEASURED
        shown = f"{value:.4g} {unit}".rstrip()
        check = Check(name, shown, words, verdict) if self._on_gpu else Check(name, NO_GPU, words, NOT_MEASURED)
        self._add(check)

    def require(self, name: str, holds: bool, measured: str, bound: str) -> None:
        """Add a check that means the same on every device."""
        self._add(Check(name, measured, bound, HOLDS if holds else FAILED))

    def require_equal(self, name: str, got: list[list[int]], expected: list[list[int]]) -> None:
        """Add a check that all texts, as tokens, are the expected ones."""
        same = sum(left == right for left, right in zip(got, expected, strict=True))
        self.require(name, same == len(expected), f"{same} of {len(expected)} texts equal", "equal")

    def note(self, **facts: Any) -> None:
        """Keep further values."""
        self.result.facts |= facts
        self._save(self.result)

    def attempt(self, part: str, run: Callable[[], None]) -> None:
        """Run a part of the step if there is time for the longest part so far; its exception fails the part alone.

        After an error of the GPU, the other parts are left out.
        """
        begun = time.time()
        if max(begun, begun + self._longest - GRACE) > self._deadline:
            self.result.left_out.append(part)
            print(f"{'left out':12} {part}: the step's time is over", flush=True)
            self._save(self.result)
            return
        try:
            run()
        except Exception as error:
            self.fail(part, error)
            if any(words in str(error) for words in GPU_ERRORS):
                self.gpu_failed, self._deadline = True, -math.inf
        self._longest = max(self._longest, time.time() - begun)

    def fail(self, part: str, error: BaseException) -> None:
        """Add a failed check for an exception, and keep its traceback."""
        self.result.errors[part] = "".join(traceback.format_exception(error))
        line = str(error).strip().split("\n")[0][:300]
        self._add(Check(part, f"{type(error).__name__}: {line}", "no error", FAILED))

    def end(self, seconds: float) -> None:
        """Keep the step's duration, which marks it as finished."""
        self.result.seconds = seconds
        self._save(self.result)

    def _add(self, check: Check) -> None:
        self.result.checks.append(check)
        print(check.line, flush=True)
        self._save(self.result)


def load(folder: Path) -> dict[str, Any]:
    """The record of an acceptance: settings, begin, device, and results by step.

    Raises:
        FileNotFoundError: the folder has none.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"results is {str(folder)!r}, a folder without {FILE}; allowed: a folder of an earlier run"
        )
    record = json.loads(path.read_text(encoding="utf-8"))
    return record | {"steps": {step: StepResult.of(values) for step, values in record["steps"].items()}}


def store(record: Mapping[str, Any], folder: Path) -> None:
    """Write the record in one step, so that no kill leaves half a file."""
    steps = {step: asdict(result) for step, result in record["steps"].items()}
    beside = folder / f"{FILE}.new"
    beside.write_text(json.dumps({**record, "steps": steps}, indent=1), encoding="utf-8")
    os.replace(beside, folder / FILE)
