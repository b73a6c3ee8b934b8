"""The fastest point of a group, named only where 95% intervals over prompts part."""

from dataclasses import dataclass

from experiments.results.records import Group, is_lossy

MOST_NAMED = 3  # points listed in a line
PLAIN = "plain decoding"


@dataclass(frozen=True)
class Entry:
    """A point, or plain decoding, with its measured speedup and the 95% interval of that."""

    name: str
    speedup: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = dict.fromkeys(f"{end:.2f}" for end in (self.low, self.high))
        return f"{self.name} ({'–'.join(ends)})"


def fastest(group: Group) -> tuple[Entry, list[Entry]] | None:
    """The fastest of plain decoding and the lossless points, and those whose 95% intervals overlap with its own.

    None if the group has no lossless point with an interval.
    """
    entries = []
    for label, record in zip(group.labels, group.records, strict=True):
        speedup, low, high = (record.metrics.get(f"speedup/{key}") for key in ("measured", "ci_low", "ci_high"))
        if not (is_lossy(record) or speedup is None or low is None or high is None):
            entries.append(Entry(label, speedup, low, high))
    if not entries:
        return None
    entries = sorted([*entries, Entry(PLAIN, 1, 1, 1)], key=lambda each: -each.speedup)
    first, *others = entries
    return first, [other for other in others if other.high >= first.low]


def fastest_line(group: Group) -> str:
    """Line with the fastest point of a group, or with those that overlap; "" if intervals are unknown.

    Every name is followed by the 95% interval of its speedup. Plain decoding takes part, with a speedup of 1; lossy
    points do not.
    """
    found = fastest(group)
    if not found:
        return ""
    first, overlapping = found
    if not overlapping:
        return f"{group.title}: fastest, by 95% intervals over prompts: {first}."
    named = ", ".join(map(str, overlapping[:MOST_NAMED]))
    more = f" and {len(overlapping) - MOST_NAMED} more" if len(overlapping) > MOST_NAMED else ""
    return f"{group.title}: no fastest drafter, since 95% intervals over prompts overlap: {first}, {named}{more}."
