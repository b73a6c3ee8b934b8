"""Repetition of an output, counted by hand."""

import pytest

from framework.metrics.repetition import distinct_4grams


@pytest.mark.parametrize(
    ("tokens", "share"),
    [
        ([1, 2, 3], None),
        ([1, 2, 3, 4], 1.0),
        ([7] * 13, 1 / 10),
        ([1, 2, 3, 4, 5, 1, 2, 3, 4], 5 / 6),  # 1234 twice; the other four once
        ([1, 2] * 6, 2 / 9),
    ],
)
def test_distinct_4grams(tokens: list[int], share: float | None) -> None:
    assert distinct_4grams(tokens) == share
