"""Parameters of a test of which only some run among the fast ones."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], *, fast: Collection[Any]) -> list[Any]:
    """Parameters of a test: every case, marked as slow unless it is among the fast ones.

    A case is one value, or a tuple of one value per parameter.

    Raises:
        ValueError: a fast case is no case.
    """
    cases = list(cases)
    if unknown := [case for case in fast if case not in cases]:
        raise ValueError(f"{unknown} are no cases of this test: {cases}")
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marked.append(pytest.param(*values, marks=() if case in fast else pytest.mark.slow))
    return marked
