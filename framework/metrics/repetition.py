"""Repetition within an output."""

from collections.abc import Sequence

N = 4


def distinct_4grams(tokens: Sequence[int]) -> float | None:
    """Distinct 4-grams of token ids ÷ all of them; None for fewer than 4 tokens.

    It is 1 for a text without repetition, and near 0 for a loop. A drafter's acceptance rate is high in loops, most of
    all that of a drafter that copies.
    """
    grams = [tuple(tokens[start : start + N]) for start in range(len(tokens) - N + 1)]
    return len(set(grams)) / len(grams) if grams else None
