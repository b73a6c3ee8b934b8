"""What the entry points share: one clear line for wrong input, a loud tail for everything else."""

from collections.abc import Iterator
from contextlib import contextmanager

from hydra.errors import CompactHydraException, InstantiationException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.status import Status


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

    Args:
        interrupted: what to say about an interruption: where everything is. None lets it pass.
    """
    try:
        yield
    except InstantiationException as error:
        # A constructor's own message says what was given, what is allowed and which key to change.
        raise CompactHydraException(f"{type(error.__cause__ or error).__name__}: {error.__cause__ or error}") from None
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        raise CompactHydraException(f"interrupted; {interrupted}") from None
    except (ValueError, OSError, FloatingPointError, ImportError, OmegaConfBaseException) as error:
        first_line = str(error).splitlines()[0] if isinstance(error, OmegaConfBaseException) else str(error)
        raise CompactHydraException(f"{type(error).__name__}: {first_line}") from None
