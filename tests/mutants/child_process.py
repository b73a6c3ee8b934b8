"""Calls in forked processes, which share the imports of this process and do not change it."""

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MOST_MEMORY = 12 * 2**30  # bytes of address space; a fault in a size must not exhaust the machine's memory


@dataclass
class Child:
    """A running call in a process group of its own.

    Attributes:
        pid: process id.
        deadline: time on `time.monotonic` after which the group is killed.
    """

    pid: int
    deadline: float

    @classmethod
    def start(cls, call: Callable[[], int], *, log: Path, seconds: float) -> "Child":
        """Run `call`, which returns an exit status, with its output in the file `log` and a limit in seconds."""
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            return cls(pid, time.monotonic() + seconds)
        status = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = call()
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline

    def poll(self) -> int | None:
        """Exit status, or the negative number of the signal that ended the call; None while it runs."""
        if self.is_late:
            self._kill()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self._kill()  # child processes left behind
        return os.waitstatus_to_exitcode(status)

    def wait(self) -> int:
        while (status := self.poll()) is None:
            time.sleep(0.05)
        return status

    def stop(self) -> None:
        """Kill the call and wait for its end, unless it has ended."""
        self._kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
