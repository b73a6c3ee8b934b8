"""Changes since earlier records, prepared for the page."""

from dataclasses import dataclass

from experiments.reporting.scale import Scale
from experiments.results.record_diff import Change, RecordDiff, difference_text


@dataclass(frozen=True)
class ChangeCells:
    """One quantity of a point, before and after.

    Attributes:
        before, after, difference: formatted values; the difference includes its interval.
        at: x of the difference, in percent of the picture's width; a difference of 0 is in the middle.
        ends: x of the ends of its interval.
        verdict: "up" or "down" if the interval excludes 0, else "".
    """

    before: str
    after: str
    difference: str
    at: float | None
    ends: tuple[float, float] | None
    verdict: str


@dataclass(frozen=True)
class ChangeRow:
    """A point measured in both sets."""

    label: str
    group: str
    cells: list[ChangeCells]


def change_rows(changes: RecordDiff) -> list[ChangeRow]:
    """Rows with speedup and alpha of every pair; each quantity has one scale for all pairs."""
    columns = [
        _cells([pair.speedup for pair in changes.pairs], digits=2),
        _cells([pair.alpha for pair in changes.pairs], digits=3),
    ]
    return [
        ChangeRow(pair.label, pair.group, list(cells)) for pair, *cells in zip(changes.pairs, *columns, strict=True)
    ]


def _cells(changes: list[Change], digits: int) -> list[ChangeCells]:
    drawn = [end for change in changes for end in (change.difference, change.low, change.high) if end is not None]
    farthest = max(map(abs, drawn), default=0.0) or 1.0
    scale = Scale(-farthest, farthest, 4, 96)
    return [
        ChangeCells(
            before="–" if change.before is None else f"{change.before:.{digits}f}",
            after="–" if change.after is None else f"{change.after:.{digits}f}",
            difference=difference_text(change, digits).removesuffix(" *"),
            at=None if change.difference is None else scale.at(change.difference),
            ends=None if change.low is None or change.high is None else (scale.at(change.low), scale.at(change.high)),
            verdict=("up" if (change.difference or 0) > 0 else "down") if change.is_clear else "",
        )
        for change in changes
    ]
