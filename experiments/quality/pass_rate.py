"""Share of completed functions that pass their tests, each run in a limited process."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

SECONDS = 5  # wall time, including Python's start
LIMITS = """\
import resource
for limit, most in (
    (resource.RLIMIT_CPU, 2),  # seconds
    (resource.RLIMIT_AS, 2**29),  # bytes
    (resource.RLIMIT_FSIZE, 0),
    (resource.RLIMIT_NPROC, 0),  # no further process or thread; without effect for root
    (resource.RLIMIT_CORE, 0),
):
    resource.setrlimit(limit, (most, most))
"""


def pass_rate(prompts: Sequence[str], completions: Sequence[str], tests: Sequence[str]) -> dict[str, float]:
    """Percentage of completions that pass their tests: pass@1 of HumanEval (Chen, M., et al., 2021).

    A completion ends before its first line that is not indented.

    The limits stop accidents: endless loops, large allocations, files. They are no sandbox against malice.
    """
    bodies = [prompt + _body(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    passed = [_passes_once(body, test) for body, test in zip(bodies, tests, strict=True)]
    return {"quality/pass_rate": 100 * sum(passed) / len(passed)}


@cache
def _passes_once(program: str, tests: str) -> bool:
    """As `passes`; lossless drafters complete a function alike, and a program runs once per process."""
    return passes(program, tests)


def passes(program: str, tests: str) -> bool:
    """Whether a program and then its tests run to their end, in a process and a folder of their own."""
    mark = secrets.token_hex(16)  # an empty file of this name is made at the end, so exiting early does not pass
    ending = f"open({mark!r}, 'x').close()"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"  # an argument could be neither long nor hold a null character
        file.write_text("\n".join((LIMITS, program, tests, ending)), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, "-I", str(file)],
            cwd=folder,
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also ends the program's child processes
        process.wait()
        return (Path(folder) / mark).exists()


def _body(completion: str) -> str:
    """The completion up to its first line that is not indented; its first line continues the prompt's last."""
    first, *lines = completion.split("\n")
    return "\n".join([first, *takewhile(lambda line: not line or line[0].isspace(), lines)])
