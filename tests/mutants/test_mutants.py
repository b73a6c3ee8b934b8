"""Mutation testing of a toy module, with faults that are detected, hang, survive, and are not covered."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.faults import all_faults, sampled_faults

REPOSITORY = Path(__file__).parents[2]

# Each line can hold one fault only.
TOY = """
def clipped(number, bound):
    return min(number, bound)


def count_up(number, bound, step):
    while number < bound:
        number += step
    return number


def is_small(number, bound):
    return number < bound


def difference(one, other):
    return one - other
"""
CHECKS = """
from toy import clipped, count_up, is_small


def test_clipped():
    assert clipped(3, 2) == 2


def test_count_up():
    assert count_up(0, 4, 2) == 4


def test_is_small():
    assert is_small(1, 9)
    assert not is_small(9, 1)


def test_that_fails():
    assert clipped(1, 1) == 2
"""
MORE_CHECKS = """
from toy import difference


def test_difference():
    assert difference(2, 1) == 1
"""
EQUIVALENT = """
[[equivalent]]
module = "toy"
function = "is_small"
before = "return number < bound"
after = "return number <= bound"
reason = "Nobody asks at the bound."
"""
PLUGINS = ("xdist.plugin", "pytest_cov.plugin")  # others take seconds to import
RUN = f"""
import sys
from pathlib import Path
from tests.mutants import __main__ as mutants, trials

mutants.MODULES, mutants.FOLDER = ("toy.py",), Path.cwd()
trials.PRELOADED, trials.EXTRA_SECONDS = {PLUGINS}, 2
sys.exit(mutants.main(["toy.py", "--tests", "checks/test_*.py", "--lines-per-fault", "1", "--folder", "results"]))
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "checks").mkdir()
    (tmp_path / "toy.py").write_text(TOY)
    (tmp_path / "checks/test_toy.py").write_text(CHECKS)
    (tmp_path / "equivalent.toml").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


def run(toy: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.append({str(REPOSITORY)!r})\n{RUN}"],
        cwd=toy,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": " ".join(f"-p {p}" for p in PLUGINS),
        },
    )


def outcomes(toy: Path) -> dict[str, str]:
    lines = (toy / "results/results.jsonl").read_text().splitlines()
    return {record["after"]: record["by"] for record in map(json.loads, lines)}


@pytest.mark.slow
def test_faults_are_seen_or_not_and_a_killed_run_goes_on(toy: Path) -> None:
    result = run(toy)
    assert result.returncode == 1, result.stderr
    expected = {
        "return max(number, bound)": "checks/test_toy.py::test_clipped failed",
        "while number <= bound:": "checks/test_toy.py::test_count_up failed",
        "pass": "checks/test_toy.py::test_count_up hung",
        "return number <= bound": "",
        "return one + other": "",
    }
    assert outcomes(toy) == expected
    assert (toy / "toy.py").read_text() == TOY
    assert result.stdout.split("all ")[1].split()[:5] == ["5", "3", "0", "2", "60.0%"]
    assert (
        "toy.py:13 is_small, not seen by 1 tests\n  - return number < bound\n  + return number <= bound"
        in result.stdout
    )
    assert "toy.py:17 difference, not seen by 0 tests" in result.stdout

    # After a kill in the middle of a line, completed trials are kept.
    results = toy / "results/results.jsonl"
    lines = results.read_text().splitlines(keepends=True)
    results.write_text("".join(lines[:2]) + lines[2][:20])
    second = run(toy)
    assert "3/3" in second.stdout and "4/4" not in second.stdout
    assert outcomes(toy) == expected

    # New tests: only undetected faults are tried again.
    (toy / "checks/test_more.py").write_text(MORE_CHECKS)
    third = run(toy)
    assert third.returncode == 1
    assert "2/2" in third.stdout and "3/3" not in third.stdout
    assert third.stdout.split("all ")[1].split()[:5] == ["5", "4", "0", "1", "80.0%"]

    # Equivalent faults are not counted.
    (toy / "equivalent.toml").write_text(EQUIVALENT)
    fourth = run(toy)
    assert fourth.returncode == 0, fourth.stdout + fourth.stderr
    assert fourth.stdout.split("all ")[1].split()[:5] == ["5", "4", "1", "0", "100.0%"]
    assert "not seen" not in fourth.stdout


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("return a <= b", {"return a < b"}),
        ("return a is not b", {"return a is b"}),
        ("return a + b * c", {"return a - b * c", "return a + b / c"}),
        ("return (a & b) if c else d", {"return (a | b) if c else d", "return (a & b) if not (c) else d"}),
        ("return not (a and b)", {"return (a and b)", "return not (a or b)"}),
        ("return ~a", {"return a"}),
        ("return a[1:]", {"return a[2:]", "return a[0:]"}),
        ("return a[:, b:]", {"return a[:, :]"}),
        ("return a.unsqueeze(1)", set()),
        ("return a.sum(1, keepdim=True)", {"return a.sum(1, keepdim=False)"}),
        ("return a.clamp(min=0.0)", {"return a", "return a.clamp(min=1.0)"}),
        ("return a.to(b.dtype), a.to(b.device)", {"return a, a.to(b.device)"}),
        ("return a.sum(1, dtype=b)", {"return a.sum(1)"}),
        ("return torch.where(a, b, 0.0)", {"return torch.where(a, 0.0, b)", "return torch.where(a, b, 1.0)"}),
        ("return zip(a, b, strict=True)", set()),
        ("self.a = b", {"pass"}),
        ("a = b", set()),
        ("a += b", {"pass"}),
        ("if a:", {"if not (a):"}),
        ("raise ValueError(a + b)", set()),
        ("a = 'π' * b", {"a = 'π' / b"}),
    ],
)
def test_faults_of_a_line(line: str, faults: set[str]) -> None:
    body = f"        {line}\n" + ("            return\n" if line.endswith(":") else "")
    source = f"class A:\n    def f(self, a=1):\n{body}"
    assert {fault.after for fault in all_faults("a.py", source)} == faults


def test_edits_elsewhere_leave_a_function_its_sample() -> None:
    def sample(source: str) -> set[str]:
        return {fault.key for fault in sampled_faults("framework/a.py", source, lines_per_fault=2)}

    function = "def f(a, b):\n    a = a + 1\n    b = b - 1\n    if a < b:\n        return a * b\n    return a / b\n"
    other = "def g(a):\n    return a < 1\n\n\n"
    assert len(sample(function)) == 3  # of five lines
    assert sample(function) < sample(other + function)
    assert sample("import math\n\n" + function) == sample(function)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["framework/**/sampling.py", "framework/**/tree.py"])
def test_a_fault_edits_one_line_of_what_it_says(pattern: str) -> None:
    (path,) = REPOSITORY.glob(pattern)
    source = path.read_text(encoding="utf-8")
    faults = list(all_faults(pattern, source))
    assert len({fault.key for fault in faults}) == len(faults) > 50
    for fault in faults:
        pairs = enumerate(zip(source.splitlines(), fault.source.splitlines(), strict=True), start=1)
        assert [(line, old.strip(), new.strip()) for line, (old, new) in pairs if old != new] == [
            (fault.line, fault.before, fault.after)
        ]
        assert fault.first_line <= fault.line <= fault.last_line
