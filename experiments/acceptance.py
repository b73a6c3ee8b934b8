"""How often drafted tokens were accepted: by their position in the draft, and by kind of prompt."""

import math
from collections.abc import Sequence

from experiments.records import Record

# Spec-Bench's six groups; the eight categories of MT-bench are one of them. Any other category is its own group.
MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
FEWEST_TESTED = 20  # a rate of fewer tests says nothing


def group_of(category: str) -> str:
    """The kind of prompts that a category belongs to."""
    return "mt_bench" if category in MT_BENCH else category


def alphas_by_position(record: Record) -> list[tuple[int, float, float, float]]:
    """Draft position, alpha there, and its interval, for as long as enough was tested to say anything."""
    rounds = record.get("counts", {}).get("rounds_by_offered_and_accepted", [])
    found = []
    for position in range(1, len(rounds)):
        # Tested here: offered a token at this position, and all before it accepted.
        tested = sum(sum(accepted_counts[position - 1 :]) for accepted_counts in rounds[position:])
        accepted = sum(sum(accepted_counts[position:]) for accepted_counts in rounds[position:])
        if tested < FEWEST_TESTED:
            break
        found.append((position, accepted / tested, *_interval(accepted, tested)))
    return found


def alpha_by_category(record: Record) -> dict[str, float]:
    """Kind of prompt and alpha there, where enough was tested to say anything."""
    counts: dict[str, tuple[int, int]] = {}
    for row in record.get("prompts", []):
        if "tested" in row:
            kind = group_of(row["category"])
            accepted, tested = counts.get(kind, (0, 0))
            counts[kind] = accepted + row["accepted"], tested + row["tested"]
    return {kind: accepted / tested for kind, (accepted, tested) in counts.items() if tested >= FEWEST_TESTED}


def categories(records: Sequence[Record]) -> list[str]:
    """Kinds of prompts that alpha is known for, in the order of the prompts."""
    return list(dict.fromkeys(kind for record in records for kind in alpha_by_category(record)))


def _interval(accepted: float, tested: float) -> tuple[float, float]:
    """95% interval of a share (Wilson, 1927), which stays within 0 and 1."""
    share, z = accepted / tested, 1.96
    middle = (share + z**2 / (2 * tested)) / (1 + z**2 / tested)
    half = z / (1 + z**2 / tested) * math.sqrt(share * (1 - share) / tested + z**2 / (4 * tested**2))
    return middle - half, middle + half
