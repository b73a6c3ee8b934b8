"""Progress of long work: a bar on a terminal, elsewhere a line at least every 30 seconds."""

import sys
import time
from datetime import timedelta
from threading import Event, Thread

from rich.console import Console
from rich.progress import Progress

SECONDS_PER_LINE = 30.0
SECONDS_OF_ESTIMATE = 3600.0  # the speed of the last hour gives the time left; a step may take minutes


class Steps:
    """Progress of work, in steps of about equal length if their number is known.

    Timed work is shown between its steps only; other work by a thread, however long a step takes.
    """

    def __init__(
        self,
        total: float | None = None,
        doing: str = "",
        *,
        completed: float = 0,
        is_timed: bool = False,
        is_hidden: bool = False,
    ):
        """
        Args:
            total: number of steps; None: not known.
            doing: description of the first step.
            completed: steps of an earlier run.
            is_timed: whether a thread would disturb timings.
            is_hidden: whether nothing is shown.
        """
        on_terminal = sys.stdout.isatty()
        self._bar = Progress(
            transient=True,
            auto_refresh=not is_timed,
            disable=is_hidden or not on_terminal,
            speed_estimate_period=SECONDS_OF_ESTIMATE,
        )
        self._bar.add_task(doing, total=total, completed=completed)  # type: ignore[arg-type]
        (self._task,) = self._bar.tasks
        self._shows_lines = not is_hidden and not on_terminal
        self._is_timed, self._ended = is_timed, Event()
        self._thread = Thread(target=self._print_lines, daemon=True) if self._shows_lines and not is_timed else None
        self._printed = time.monotonic()

    def __enter__(self) -> "Steps":
        self._bar.start()
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        self._ended.set()
        if self._thread:
            self._thread.join()

    def update(self, doing: str, *, advance: float = 0, completed: float | None = None) -> None:
        """Show the current step, and the number of completed steps."""
        self._bar.update(self._task.id, description=doing, advance=advance, completed=completed, refresh=self._is_timed)
        if self._shows_lines and self._is_timed and time.monotonic() - self._printed >= SECONDS_PER_LINE:
            self._print_line()

    def _print_lines(self) -> None:
        while not self._ended.wait(SECONDS_PER_LINE):
            self._print_line()

    def _print_line(self) -> None:
        self._printed = time.monotonic()
        Console(stderr=True).print(self.line, highlight=False, markup=False, soft_wrap=True)

    @property
    def line(self) -> str:
        """Description of the current step, share of completed steps, and estimated time left."""
        task = self._task
        if task.total is None:
            return f"{task.description}: {timedelta(seconds=round(task.elapsed or 0))} so far"
        left = task.time_remaining
        share = f"{task.description}: {task.percentage:.0f}% done"
        return share if left is None else f"{share}, {timedelta(seconds=round(left))} left"
