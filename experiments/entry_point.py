"""What the entry points share: one clear line for wrong input, a loud tail for everything else."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, InstantiationException
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.status import Status
from rich.text import Text


def status(doing: str) -> Status:
    """A turning wheel beside what takes seconds: `with status("building ngram"):`. Without a terminal it is silent."""
    return Console(stderr=True).status(doing)


def announce(doing: str) -> None:
    """Say what begins, where time is taken: a turning wheel would take its share of what is being timed."""
    Console(stderr=True).print(doing, highlight=False, soft_wrap=True)


@contextmanager
def one_line_errors(
    *, interrupted: str | None = "every prompt that was finished is in prompts.jsonl"
) -> Iterator[None]:
    """Turn errors that explain themselves into one line and exit code 1; anything else is a bug and keeps its trace.

    With HYDRA_FULL_ERROR=1 in the environment all keep it.

    Args:
        interrupted: what to say about an interruption: where everything is. None lets it pass.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1" or (line := _in_one_line(error, interrupted)) is None:
            raise
        if is_point_of_sweep() and isinstance(error, Exception):  # the sweep's other points go on
            raise CompactHydraException(line) from None
        Console(stderr=True).print(Text(line, "red"), soft_wrap=True)
        sys.exit(1)


def _in_one_line(error: BaseException, interrupted: str | None) -> str | None:
    """What to say of an error, or None where it is to keep its trace."""
    match error:
        case KeyboardInterrupt():
            return interrupted and f"interrupted; {interrupted}"
        case InstantiationException():
            # A constructor's own message says what was given, what is allowed and which key to change.
            return _named(error.__cause__ or error)
        case OmegaConfBaseException():
            return _named(error, str(error).splitlines()[0])
        case ValueError() | OSError() | FloatingPointError() | ImportError():
            return _named(error)
    return None


def _named(error: BaseException, message: str | None = None) -> str:
    return f"{type(error).__name__}: {error if message is None else message}"


def is_point_of_sweep() -> bool:
    """Whether this is one of several points that Hydra runs one after another (-m)."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
