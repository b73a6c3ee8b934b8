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

    @property
    def _values(self) -> tuple[object, ...]:
        """Arguments of the constructor after the option."""
        return self.given, self.allowed, self.problem

    def under(self, path: str) -> Self:
        """The same error for the option `path.option`."""
        return type(self)(f"{path}.{self.option}" if path else self.option, *self._values)  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), (self.option, *self._values)


class OtherTargetError(OptionError):
    """Option that names a part made for another target.

    Attributes:
        made_by: command that makes such a part, without its `target=`, such as `train drafter=medusa`; "" if none does.
    """

    def __init__(self, option: str, given: object, allowed: str, problem: str = "", made_by: str = ""):
        self.made_by = made_by
        super().__init__(option, given, allowed, problem)

    @property
    def _values(self) -> tuple[object, ...]:
        return *super()._values, self.made_by


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
