"""Cache of loaded models and derived objects, shared by the points of one process."""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class ResourceCache:
    """Cache of one object and of the parts derived from it, until a different object is requested.

    A sweep thus has one target in memory, with its prompts, its compiled graphs and its last drafter.
    """

    def __init__(self) -> None:
        self._made_of: str | None = None
        self._thing: Any = None
        self._parts: dict[str, Any] = {}
        self._beside: dict[str, ResourceCache] = {}

    def beside(self, name: str) -> "ResourceCache":
        """Return an independent cache under a name; it survives `forget`."""
        return self._beside.setdefault(name, ResourceCache())

    def thing(self, made_of: str, make: Callable[[], T]) -> T:
        """Return the object with the key `made_of`.

        If the cached object has another key, it is forgotten and the new one is made.
        """
        if made_of != self._made_of:
            self.forget()
            self._thing = make()
            self._made_of = made_of
        return self._thing

    def forget(self) -> None:
        """Drop the object and its parts to free memory, since two objects may not fit."""
        was_empty = self._thing is None
        self._made_of, self._thing, self._parts = None, None, {}
        if not was_empty:
            gc.collect()  # compiled graphs have reference cycles

    def part(self, made_of: str, make: Callable[[], T]) -> T:
        """Return the part with the key `made_of`, made on first use and dropped with the object."""
        if made_of not in self._parts:
            self._parts[made_of] = make()
        return self._parts[made_of]


@cache
def process_cache() -> ResourceCache:
    """The cache of this process: its latest target with derived objects, and the tracker in a `beside` cache."""
    return ResourceCache()
