"""Cache of loaded models and derived objects, shared by the points of one process."""

import gc
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class ResourceCache:
    """Cache of one main object and of objects derived from it, until a different main object is requested.

    A sweep thus has one target in memory, with its prompts, its compiled graphs and its last drafter.
    """

    def __init__(self) -> None:
        self._key: str | None = None
        self._main: Any = None
        self._derived: dict[str, Any] = {}
        self._separate: dict[str, ResourceCache] = {}

    def separate(self, name: str) -> "ResourceCache":
        """Return an independent cache under a name; it survives `forget`."""
        return self._separate.setdefault(name, ResourceCache())

    def main(self, key: str, make: Callable[[], T]) -> T:
        """Return the main object with this key.

        If the cached object has another key, it is forgotten and the new one is made.
        """
        if key != self._key:
            self.forget()
            self._main = make()
            self._key = key
        return self._main

    def forget(self) -> None:
        """Drop the main object and the derived ones to free memory, since two objects may not fit."""
        was_empty = self._main is None
        self._key, self._main, self._derived = None, None, {}
        if not was_empty:
            gc.collect()  # compiled graphs have reference cycles

    def derived(self, key: str, make: Callable[[], T]) -> T:
        """Return the derived object with this key, made on first use and dropped with the main object."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]


@cache
def process_cache() -> ResourceCache:
    """The cache of this process: its latest target with derived objects, and the tracker in a `separate` cache."""
    return ResourceCache()
