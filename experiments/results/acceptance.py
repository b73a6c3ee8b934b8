"""Acceptance rates by draft position and by kind of prompt."""

import math
from collections.abc import Sequence

from experiments.results.record import Record

# Spec-Bench has six groups; one of them holds the eight categories of MT-bench. Any other category is its own group.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
FEWEST_TESTED = 20  # rates over fewer tested tokens are too noisy to report


def group_of(category: str) -> str:
    """Group of a category: mt_bench for those of MT-bench, else the category itself."""
    return "mt_bench" if category in MT_BENCH else category


def alphas_by_position(record: Record) -> list[tuple[int, float, float, float]]:
    """Acceptance rate per draft position, with its 95% interval.

    Returns:
        (position, alpha, low, high) for positions 1, 2, ..., ending before the first one with fewer than FEWEST_TESTED
        tested tokens.
    """
    rounds = record.counts.get("rounds_by_offered_and_accepted", [])
    found = []
    for position in range(1, len(rounds)):
        # Tested: a token was offered at this position, and all earlier ones were accepted.
        tested = sum(sum(accepted_counts[position - 1 :]) for accepted_counts in rounds[position:])
        accepted = sum(sum(accepted_counts[position:]) for accepted_counts in rounds[position:])
        if tested < FEWEST_TESTED:
            break
        found.append((position, accepted / tested, *_interval(accepted, tested)))
    return found


def alpha_by_category(record: Record) -> dict[str, float]:
    """Alpha by kind of prompt, for kinds with at least FEWEST_TESTED tested tokens."""
    counts: dict[str, tuple[int, int]] = {}
    for row in record.prompts:
        if "tested" in row:
            kind = group_of(row["category"])
            accepted, tested = counts.get(kind, (0, 0))
            counts[kind] = accepted + row["accepted"], tested + row["tested"]
    return {kind: accepted / tested for kind, (accepted, tested) in counts.items() if tested >= FEWEST_TESTED}


def categories(records: Sequence[Record]) -> list[str]:
    """Kinds of prompts with a known alpha, in the order of the prompts."""
    return list(dict.fromkeys(kind for record in records for kind in alpha_by_category(record)))


def _interval(accepted: float, tested: float) -> tuple[float, float]:
    """95% interval of a share (Wilson, 1927); it lies within 0 and 1."""
    share, z = accepted / tested, 1.96
    middle = (share + z**2 / (2 * tested)) / (1 + z**2 / tested)
    half = z / (1 + z**2 / tested) * math.sqrt(share * (1 - share) / tested + z**2 / (4 * tested**2))
    return middle - half, middle + half
