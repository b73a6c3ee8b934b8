"""Trials of faults, each in a process that imports the edited module and runs tests until one fails."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.child_process import Child
from tests.mutants.covering_tests import RecordedTest
from tests.mutants.faults import Fault

SLOWDOWN = 10  # a test hangs if its CPU time exceeds SLOWDOWN times its duration plus EXTRA_SECONDS
EXTRA_SECONDS = 20
LONGEST_START = 120  # seconds of CPU time before the first test
LARGEST_BATCHES = (8, 32, 128)  # a call of pytest imports all its test files, so the first batches are small
# Third-party imports of modules and tests, made once for all trials; each trial imports the project itself.
PRELOADED = (
    *("torch", "torch._dynamo", "torch._inductor", "torch._inductor.cpp_builder", "torch._inductor.custom_graph_pass"),
    *("transformers", "transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama"),
    *("transformers.models.t5.modeling_t5", "transformers.models.gpt2.modeling_gpt2", "tokenizers", "hypothesis"),
    *("numpy", "scipy.stats", "omegaconf", "hydra", "matplotlib.pyplot", "wandb", "xdist", "pytest_cov.plugin"),
)


@dataclass(frozen=True)
class Trial:
    """Result of trying a fault.

    Attributes:
        fault: the fault.
        seen: whether a test detected it.
        by: the test, and how it ended: failed, hung, or crashed; "" if no test detected the fault.
        num_tests: number of tests chosen.
        seconds: duration of the trial.
    """

    fault: Fault
    seen: bool
    by: str
    num_tests: int
    seconds: float


def preload() -> None:
    """Import the packages in PRELOADED that are installed."""
    for name in PRELOADED:
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name)


def covering(fault: Fault, tests: Sequence[RecordedTest], *, most_seconds: float) -> list[RecordedTest]:
    """First tests that cover the fault, up to a total of `most_seconds`, at least one if any covers it."""
    covering = [test for test in tests if test.covers(fault)]
    ends = accumulate(test.seconds for test in covering)
    return [
        test for place, (test, end) in enumerate(zip(covering, ends, strict=True)) if not place or end <= most_seconds
    ]


def tried(
    faults: Sequence[Fault], tests: Sequence[RecordedTest], *, workers: int, most_seconds: float
) -> Iterator[Trial]:
    """Try faults in `workers` parallel processes and yield the trials in the order of completion.

    Raises:
        RuntimeError: pytest could not run the tests.
    """
    waiting, running = list(faults), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                fault = waiting.pop(0)
                if chosen := covering(fault, tests, most_seconds=most_seconds):
                    running.append(_Running(fault, chosen))
                else:
                    yield Trial(fault, seen=False, by="", num_tests=0, seconds=0.0)
            time.sleep(0.05)
            for trial in list(running):
                if (result := trial.result()) is not None:
                    running.remove(trial)
                    yield result
    finally:
        for trial in running:
            trial.stop()


def failing_without_fault(names: Sequence[str], tests: Sequence[RecordedTest]) -> str:
    """The first of the tests that fails in a trial with the unchanged source; "" if all pass."""
    result = None
    trial = _Running(None, [test for test in tests if test.name in names])
    while result is None:
        time.sleep(0.05)
        result = trial.result()
    return result.by


class _Running:
    """A running trial, in a temporary folder of its own."""

    def __init__(self, fault: Fault | None, tests: Sequence[RecordedTest]):
        self._fault, self._tests = fault, tests
        self._started = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="trial_"))
        self._note = self._folder / "note"
        # Wall-clock limit for tests that wait; tests that compute for too long hit the CPU limit earlier.
        seconds = (len(LARGEST_BATCHES) + 1) * LONGEST_START + sum(
            EXTRA_SECONDS + SLOWDOWN * test.seconds for test in tests
        )
        self._child = Child.start(self._run, log=self._folder / "log", seconds=seconds)

    def _run(self) -> int:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self._folder / "hypothesis")
        if self._fault is not None:
            sys.meta_path.insert(0, _EditedModule(self._fault))
        return run_tests(self._tests, note=self._note, folder=self._folder)

    def result(self) -> Trial | None:
        """The finished trial; None while it runs."""
        status = self._child.poll()
        if status is None:
            return None
        note = self._note.read_text(encoding="utf-8") if self._note.exists() else ""
        log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(self._folder, ignore_errors=True)
        if status == -signal.SIGPROF or (status == -signal.SIGKILL and self._child.is_late):
            by = f"{note} hung"
        elif status < 0 and status != -signal.SIGKILL:
            by = f"{note} crashed with signal {-status}"
        elif status == pytest.ExitCode.TESTS_FAILED:
            by = f"{note} failed"
        elif status == pytest.ExitCode.OK:
            by = ""
        else:
            raise RuntimeError(f"tests could not be run (status {status}):\n{log[-4000:]}")
        return Trial(self._fault, bool(by), by, len(self._tests), round(time.monotonic() - self._started, 1))

    def stop(self) -> None:
        self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def run_tests(tests: Sequence[RecordedTest], *, note: Path, folder: Path) -> int:
    """Run tests in batches until one fails.

    Args:
        tests: tests in order of execution.
        note: file to write with the name of the current or last test.
        folder: folder for files of the tests.

    Returns:
        exit status of pytest.
    """
    on_round = _Watch({test.name: test.seconds for test in tests}, note)
    options = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "--no-cov", "-m", ""]
    remaining = list(tests)
    for number in (*LARGEST_BATCHES, len(tests)):
        batch, remaining = remaining[:number], remaining[number:]
        if batch:
            signal.setitimer(signal.ITIMER_PROF, LONGEST_START)
            names = [test.name for test in batch]
            files = dict.fromkeys(name.partition("::")[0] for name in names)
            status = pytest.main(
                [*options, f"--basetemp={folder / 'files'}", *files], plugins=[on_round, _Selection(names)]
            )
            if on_round.import_failed:
                return pytest.ExitCode.TESTS_FAILED
            if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                return int(status)
    return pytest.ExitCode.OK


class _Selection:
    """Pytest plugin that runs only the named tests, in their order."""

    def __init__(self, names: Sequence[str]):
        self._names = names

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self._names if name in found]


class _Watch:
    """Pytest plugin that notes the current test and ends the process if it hangs."""

    def __init__(self, seconds: dict[str, float], note: Path):
        self._seconds = seconds
        self._note = note
        self.import_failed = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._note.write_text(nodeid, encoding="utf-8")
        # Without a handler the signal kills the process in any state. The timer counts CPU time, since the machine may
        # be busy.
        signal.setitimer(signal.ITIMER_PROF, EXTRA_SECONDS + SLOWDOWN * self._seconds.get(nodeid, 0))

    def pytest_runtest_logfinish(self) -> None:  # the next test may need further imports
        signal.setitimer(signal.ITIMER_PROF, LONGEST_START)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid:  # an empty id is the session, whose report follows
            self.import_failed = True
            self._note.write_text(f"import of {report.nodeid}", encoding="utf-8")


class _EditedModule(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that loads one module from its faulty source, without writing files."""

    def __init__(self, fault: Fault):
        self._fault = fault
        self._name = fault.path.removesuffix(".py").replace("/", ".")

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, Path(self._fault.path).absolute(), loader=self)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._fault.source, str(Path(self._fault.path).absolute()), "exec"), module.__dict__)
