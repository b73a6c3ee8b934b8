"""Errors about option values: the option, the value given and the values allowed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class OptionError(ValueError):
    """Invalid value of an option.

    A constructor names its own options. Callers that know its place in the config prepend the path (`under`).

    Attributes:
        option: name, with the path as far as it is known: `top_k`, `model.path`, `drafter.model.path`.
        given: the invalid value.
        allowed: the valid values, in words.
        problem: the fault of the value, where `allowed` does not make it clear.
    """

    def __init__(self, option: str, given: object, allowed: str, problem: str = ""):
        self.option, self.given, self.allowed, self.problem = option, given, allowed, problem
        super().__init__(f"{option} is {given!r}{problem and f', {problem}'}; allowed: {allowed}")

    def under(self, path: str) -> Self:
        """The same error for the option `path.option`."""
        return type(self)(f"{path}.{self.option}" if path else self.option, self.given, self.allowed, self.problem)

    def __reduce__(self) -> tuple[type[Self], tuple[str, object, str, str]]:
        return type(self), (self.option, self.given, self.allowed, self.problem)


class UnreadableError(OptionError, OSError):
    """Option that names an unreadable file or folder."""


class MissingFileError(UnreadableError, FileNotFoundError):
    """Option that names a missing file or folder."""


class UnreachableError(UnreadableError, ConnectionError):
    """Option that names a repository on an unreachable hub."""


@contextmanager
def options_under(path: str) -> Iterator[None]:
    """Prepend a config path to the option of every OptionError raised in the block.

    Args:
        path: config path of the options set in the block; empty: errors keep their option.

    Raises:
        OptionError: one was raised in the block; its option is now under `path`.
    """
    try:
        yield
    except OptionError as error:
        raise error.under(path) from error
