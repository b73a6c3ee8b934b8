"""Terminal output shared by the commands: status lines, and one-line errors for wrong input."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, HydraException, InstantiationException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.status import Status
from rich.text import Text

from experiments.config.progress import Steps


def status(doing: str) -> Status | Steps:
    """Spinner for steps that take seconds: `with status("building ngram"):`; see `Steps` for one without a terminal."""
    # A notebook's kernel claims colours without a terminal, and a live display there would need ipywidgets.
    console = Console(stderr=True, force_jupyter=False, force_terminal=sys.stderr.isatty())
    return console.status(doing) if console.is_terminal else Steps(doing=doing)


def announce(doing: str) -> None:
    """Print the start of a timed step; a spinner's thread would disturb the timing."""
    Console(stderr=True).print(doing, highlight=False, soft_wrap=True)


class _Announced(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        announce(record.getMessage())


@contextmanager
def announcing(logger: str) -> Iterator[None]:
    """Print the messages of a logger in the block, as `announce` does, and keep them from Hydra's log."""
    log, handler = logging.getLogger(logger), _Announced()
    before = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def relative(folder: Path) -> Path:
    """Path relative to the current directory if below it, else absolute."""
    relative = Path(os.path.relpath(folder))
    return folder.absolute() if ".." in relative.parts else relative


def finished_prompts() -> str:
    """Number of finished prompts in the folder of this command, for the message of an interrupt."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    number = sum(path.read_bytes().count(b"\n") for path in folder.rglob("prompts.jsonl"))
    return f"finished prompts of all points: {number}" + (f", recorded in {relative(folder)}" if number else "")


@contextmanager
def one_line_errors(
    *, interrupted: str | Callable[[], str] | None = finished_prompts, ends_sweep: bool = False
) -> Iterator[None]:
    """Turn errors of the user's input into one line and exit status 1.

    Other errors are bugs and keep their traceback.

    With HYDRA_FULL_ERROR=1 in the environment all errors keep it. A point of a sweep raises CompactHydraException
    with that line instead of exiting; the traceback is in its error.json.

    Args:
        interrupted: place of the results after an interrupt, or a function that names it; None: KeyboardInterrupt
            passes.
        ends_sweep: whether an error ends a sweep, rather than only a point of it.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or (line := _in_one_line(error, interrupted)) is None:
            raise
        if is_point_of_sweep() and not ends_sweep and isinstance(error, Exception):  # the sweep's other points continue
            raise CompactHydraException(line) from None
        end_with(line)


def end_with(message: str) -> NoReturn:
    """Print an error, without a traceback, and exit with status 1."""
    Console(stderr=True).print(Text(message, "red"), soft_wrap=True)
    sys.exit(1)


@contextmanager
def value_errors() -> Iterator[None]:
    """Turn exceptions of Hydra and OmegaConf into ValueErrors of one line, for use from Python.

    The error of a constructor, which names its option, passes in place of Hydra's.
    """
    try:
        yield
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | OSError):
            raise error.__cause__ from None
        raise ValueError(" ".join(str(error.__cause__ or error).split())) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(str(error).splitlines()[0]) from error


def _in_one_line(error: BaseException, interrupted: str | Callable[[], str] | None) -> str | None:
    """One-line message of an error; None if it keeps its traceback."""
    match error:
        case KeyboardInterrupt():
            return interrupted and f"interrupted; {interrupted() if callable(interrupted) else interrupted}"
        case InstantiationException():
            # The constructor's message states the given value, the allowed ones and the key.
            return _named(error.__cause__ or error)
        case OmegaConfBaseException():
            key = f"{error.full_key}: " if error.full_key else ""
            return _named(error, key + str(error).splitlines()[0])
        case ValueError() | OSError() | FloatingPointError() | ImportError():
            return _named(error)
    return None


def _named(error: BaseException, message: str | None = None) -> str:
    lines = str(error if message is None else message).splitlines()
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines)}"


def is_point_of_sweep() -> bool:
    """Whether this process runs a point of a Hydra multirun (-m)."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
