"""Tests that cover each line, with their durations, recorded by coverage.py once per test file."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants.child_process import Child
from tests.mutants.faults import Fault, digest

LONGEST_RECORDING = 3 * 3600  # seconds


@dataclass(frozen=True)
class RecordedTest:
    """A passing test.

    Attributes:
        name: pytest's node id.
        seconds: duration with fixtures, under coverage.
        lines: covered lines by path of the module, as bit masks (bit n: line n), since sets for thousands of tests
            take a gigabyte.
    """

    name: str
    seconds: float
    lines: dict[str, int]

    def covers(self, fault: Fault) -> bool:
        return bool(self.lines.get(fault.path, 0) & _bits(range(fault.first_line, fault.last_line + 1)))


class CoveringTests:
    """Recorded tests of a repository, in a folder with one JSON file per test file.

    A test file is recorded again if it or a module has changed.
    """

    def __init__(self, *, repository: Path, modules: Sequence[str], folder: Path):
        """
        Args:
            repository: root of the repository, which must be the current directory.
            modules: paths of the modules whose lines are recorded.
            folder: folder of the recordings; created if it does not exist.
        """
        self._repository = repository
        self._modules = modules
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def record(self, test_files: Sequence[str], *, workers: int) -> None:
        """Run the test files without an up-to-date recording.

        Raises:
            RuntimeError: pytest ended abnormally.
        """
        missing = [path for path in test_files if self._read(path) is None]
        if not missing:
            return
        print(f"recording the lines covered by {len(missing)} test files", flush=True)
        log = self._folder / "recording.log"
        status = Child.start(lambda: self._run(missing, workers), log=log, seconds=LONGEST_RECORDING).wait()
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise RuntimeError(f"recording ended with status {status}; see {log}")
        if status == pytest.ExitCode.TESTS_FAILED:
            print(f"some tests fail without a fault and are left out; see {log}", flush=True)

    def of(self, test_files: Sequence[str]) -> list[RecordedTest]:
        """Recorded tests of the files, fastest first."""
        tests = [test for path in test_files for test in self._read(path) or []]
        return sorted(tests, key=lambda test: (test.seconds, test.name))

    def _run(self, test_files: Sequence[str], workers: int) -> int:
        data, settings = self._folder / "coverage.sqlite", self._folder / "coverage.ini"
        settings.write_text(
            f"[run]\ndata_file = {data}\ninclude =\n" + "".join(f"    {path}\n" for path in self._modules)
        )
        options = ["--cov", f"--cov-config={settings}", "--cov-context=test", "--cov-report=", "-q"]
        options += ["-m", ""]  # slow tests, too
        options += ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        digests = {path: self._digest(path) for path in test_files}  # taken before the run, in case of edits during it
        times = _Times()
        status = pytest.main([*options, *test_files], plugins=[times])
        if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._write(digests, times, data)
        return status

    def _write(self, digests: dict[str, str], times: "_Times", data: Path) -> None:
        lines = _lines_by_test(data, self._repository)
        by_file: dict[str, list[dict[str, object]]] = {path: [] for path in digests}
        for name, seconds in times.passed():
            by_file[name.split("::")[0]].append({"name": name, "seconds": seconds, "lines": lines.get(name, {})})
        for path, tests in by_file.items():
            self._file(path).write_text(json.dumps({"digest": digests[path], "tests": tests}))

    def _read(self, test_file: str) -> list[RecordedTest] | None:
        if not self._file(test_file).exists():
            return None
        recorded = json.loads(self._file(test_file).read_text())
        if recorded["digest"] != self._digest(test_file):
            return None
        return [
            RecordedTest(test["name"], test["seconds"], {path: _bits(its) for path, its in test["lines"].items()})
            for test in recorded["tests"]
        ]

    def _file(self, test_file: str) -> Path:
        return self._folder / f"{Path(test_file).with_suffix('').as_posix().replace('/', '.')}.json"

    def _digest(self, test_file: str) -> str:
        return digest(*((self._repository / path).read_text(encoding="utf-8") for path in (test_file, *self._modules)))


def _bits(lines: Iterable[int]) -> int:
    return sum(1 << line for line in set(lines))


class _Times:
    """Pytest plugin that records the durations of tests and their failures."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._not_passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if not report.passed:
            self._not_passed.add(report.nodeid)

    def passed(self) -> Iterable[tuple[str, float]]:
        return [(name, seconds) for name, seconds in self._seconds.items() if name not in self._not_passed]


def _lines_by_test(data: Path, repository: Path) -> dict[str, dict[str, list[int]]]:
    """Covered lines by test and path; lines run at import belong to no test."""
    from coverage import CoverageData

    coverage = CoverageData(str(data))
    coverage.read()
    found: dict[str, dict[str, list[int]]] = defaultdict(dict)
    for file in coverage.measured_files():
        path = Path(file).relative_to(repository).as_posix()
        for line, contexts in coverage.contexts_by_lineno(file).items():
            for name in {context.rpartition("|")[0] for context in contexts} - {""}:  # "test|phase"
                found[name].setdefault(path, []).append(line)
    return found
