"""Completions that pass their tests, and those that only end."""

import time

import pytest

from experiments.quality import pass_rate
from experiments.quality.pass_rate import passes

ADD = "def add(a, b):\n"


def test_a_right_function_passes_and_a_wrong_one_does_not():
    completions = ["    return a + b\nprint(", "    return a - b", "    retur", "    exit(0)"]
    tests = ["assert add(2, 3) == 5"] * 4
    assert pass_rate.pass_rate([ADD] * 4, completions, tests) == {"quality/pass_rate": 25}


@pytest.mark.parametrize(
    "body",
    ["exit(0)", "import os; os._exit(0)", "open('file', 'wb', 0).write(b'text')", "bytes(2**32)",
     "import os; os.environ['PATH']", "input()", "text = 'a\0b'"],
)  # fmt: skip
def test_what_leaves_the_limits_does_not_pass(body):
    assert not passes(body, "")


def test_a_program_may_be_longer_than_an_argument():
    assert passes(f"text = {'a' * 2**18!r}", "assert len(text) == 2**18")


def test_what_takes_too_long_does_not_pass(monkeypatch):
    monkeypatch.setattr(pass_rate, "SECONDS", 0.3)
    assert not passes("while True: pass", "")


def test_what_a_program_starts_ends_with_it(tmp_path):
    file = tmp_path / "alive"
    started = f"import time; time.sleep(0.5); open({str(file)!r}, 'x')"
    # Only root may start processes at all.
    passes(f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {started!r}])", "")
    time.sleep(0.7)
    assert not file.exists()
