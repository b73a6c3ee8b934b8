"""What the points of one process share: what is loaded is not loaded again."""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class Kept:
    """One thing, kept until another is asked for, and all that was made for it.

    So a sweep has one target in memory, with its prompts, its programs, and its last drafter.
    """

    def __init__(self) -> None:
        self._made_of: str | None = None
        self._thing: Any = None
        self._parts: dict[str, Any] = {}
        self._beside: dict[str, Kept] = {}

    def beside(self, name: str) -> "Kept":
        """Something else that is kept, which stays when this is forgotten."""
        return self._beside.setdefault(name, Kept())

    def thing(self, made_of: str, make: Callable[[], T]) -> T:
        """The thing that is made of this; made only if the kept one was made of something else."""
        if made_of != self._made_of:
            self.forget()
            self._thing = make()
            self._made_of = made_of
        return self._thing

    def forget(self) -> None:
        """Free its memory, before another is loaded: both may not fit."""
        was_empty = self._thing is None
        self._made_of, self._thing, self._parts = None, None, {}
        if not was_empty:
            gc.collect()  # programs hold themselves

    def part(self, made_of: str, make: Callable[[], T]) -> T:
        """What was made for the thing, and goes with it."""
        if made_of not in self._parts:
            self._parts[made_of] = make()
        return self._parts[made_of]


@cache
def kept_by_process() -> Kept:
    """The target that this process loaded last, and all that was made for it; beside it, the tracker."""
    return Kept()
