"""Differences between two sets of records, per point, with bootstrap intervals over prompts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from scipy.stats import bootstrap

from experiments.reporting.tables.text_table import Cells
from experiments.results.record import Record
from experiments.results.records import group_records

RESAMPLES = 9999
LEVEL = 0.95
STAR = " * the interval excludes 0."
NOTE = (
    "Each difference is followed by its 95% interval over prompts of the same kind (percentile bootstrap; where both "
    "runs decoded the same prompts, before and after are resampled together). The interval does not include the noise "
    f"of the machine, which shows in the spread of the repeats.{STAR}"
)

Statistic = Callable[["_Units", np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Change:
    """One quantity before and after.

    Attributes:
        before, after: values; None where the record has none.
        low, high: 95% interval of after - before; None where a record lacks per-prompt data.
    """

    before: float | None
    after: float | None
    low: float | None = None
    high: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Pair:
    """A point measured in both sets; label and group are those of the later set."""

    label: str
    group: str
    before: Record
    after: Record
    speedup: Change
    alpha: Change


@dataclass(frozen=True)
class RecordDiff:
    """Points measured in both sets, and the names of points measured in only one."""

    pairs: list[Pair]
    only_before: list[str]
    only_after: list[str]


def diff_records(before: Sequence[Record], after: Sequence[Record]) -> RecordDiff:
    """Pair points by equal settings, then pair the remaining points by equal names."""
    left, partners = list(before), {}
    for line in (_settings, _name):
        for record in after:
            if id(record) not in partners:
                found = next((index for index, other in enumerate(left) if line(other) == line(record)), None)
                if found is not None:
                    partners[id(record)] = left.pop(found)
    pairs = [
        Pair(
            label=label,
            group=group.title,
            before=partners[id(record)],
            after=record,
            speedup=_change(partners[id(record)], record, "speedup/measured", _speedup),
            alpha=_change(partners[id(record)], record, "alpha/empirical", _alpha),
        )
        for group in group_records(after)
        for label, record in zip(group.labels, group.records, strict=True)
        if id(record) in partners
    ]
    only_after = [_name(record) for record in after if id(record) not in partners]
    return RecordDiff(pairs, [_name(record) for record in left], only_after)


def changes_table(found: RecordDiff) -> Table:
    """Table for a terminal, with one row per point measured in both sets."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=0, title="Before and after", title_justify="left")
    table.add_column("drafter", overflow="fold", min_width=12)
    for heading in ("speedup", "difference", "α", "difference"):
        table.add_column(heading, justify="right")
    group = None
    for pair in found.pairs:
        if pair.group != group:
            group = pair.group
            table.add_row(Text(group, style="bold"))
        cells = []
        for change, digits in ((pair.speedup, 2), (pair.alpha, 3)):
            before, after, difference = _cells(change, digits)
            colour = "bold green" if (change.difference or 0) > 0 else "bold red"
            cells += [Text(f"{before} → {after}"), Text(difference, style=colour if change.is_clear else "")]
        table.add_row(Text(pair.label), *cells)  # Text: brackets in a label are not markup
    table.caption = Text("\n" + "\n".join([NOTE, *unpaired_notes(found)]), style="dim", justify="left")
    return table


def changes_cells(found: RecordDiff) -> Cells:
    """The table as rows of strings, heading first, for a document."""
    quantities = ("speedup", "α")
    sides = ("before", "after", "difference")
    heading = ["drafter", "setting", *(f"{name} {side}" for name in quantities for side in sides)]
    rows = [
        [pair.label, pair.group, *_cells(pair.speedup, digits=2), *_cells(pair.alpha, digits=3)] for pair in found.pairs
    ]
    return [heading, *rows]


def difference_text(change: Change, digits: int) -> str:
    """A difference with its interval, starred where that excludes 0; a dash where unknown."""
    if change.difference is None:
        return "–"
    shown = f"{change.difference:+.{digits}f}"
    if change.low is None or change.high is None:
        return shown
    return f"{shown} ({change.low:+.{digits}f} to {change.high:+.{digits}f}){' *' if change.is_clear else ''}"


def unpaired_notes(found: RecordDiff) -> list[str]:
    """Lines that name the points measured in only one set."""
    sides = (("before", found.only_before), ("after", found.only_after))
    return [f"Only measured {side}: {', '.join(names)}" for side, names in sides if names]


def _cells(change: Change, digits: int) -> list[str]:
    sides = ["–" if value is None else f"{value:.{digits}f}" for value in (change.before, change.after)]
    return [*sides, difference_text(change, digits)]


def _settings(record: Record) -> str:
    return json.dumps(record.point, sort_keys=True)


def _name(record: Record) -> str:
    return str(record.name)


@dataclass(frozen=True)
class _Units:
    """Resampling units of the bootstrap: prompts, or batches, whose rows share one time. U units, R repeats."""

    names: list[str]
    seconds: np.ndarray  # [U, R] decoding time
    tokens: np.ndarray  # [U] tokens decoded in that time
    plain_seconds: np.ndarray  # [U, R] decoding time of the baseline
    plain_tokens: np.ndarray  # [U] tokens of the baseline
    accepted: np.ndarray  # [U]
    tested: np.ndarray  # [U]

    @classmethod
    def of(cls, record: Record) -> "_Units | None":
        """Units of a record; None if it lacks per-prompt data or has fewer than 2 units."""
        rows, size = record.prompts or [], record.point.get("batch_size") or 1
        batches = [rows[start : start + size] for start in range(0, len(rows), size)]
        if len(batches) < 2 or not all("tested" in row and "decode_seconds" in row for row in rows):
            return None
        return cls(
            names=[f"{row['name']} {row['prompt_tokens']}" for row in rows],
            seconds=np.array([batch[0]["decode_seconds"] for batch in batches], dtype=float),
            # The prefill yields the first token of a row.
            tokens=np.array([sum(row["new_tokens"] - 1 for row in batch) for batch in batches]),
            plain_seconds=np.array([batch[0]["baseline_decode_seconds"] for batch in batches], dtype=float),
            plain_tokens=np.array([sum(row["baseline_new_tokens"] - 1 for row in batch) for batch in batches]),
            accepted=np.array([sum(row["accepted"] for row in batch) for batch in batches]),
            tested=np.array([sum(row["tested"] for row in batch) for batch in batches]),
        )


def _speedup(units: _Units, drawn: np.ndarray) -> np.ndarray:
    """speedup/measured of resampled units: indices [..., n] -> [...]."""
    own = units.seconds[drawn].sum(-2) / units.tokens[drawn].sum(-1)[..., None]
    plain = units.plain_seconds[drawn].sum(-2) / units.plain_tokens[drawn].sum(-1)[..., None]
    return np.median(plain / own, axis=-1)


def _alpha(units: _Units, drawn: np.ndarray) -> np.ndarray:
    """alpha/empirical of resampled units: indices [..., n] -> [...]."""
    return units.accepted[drawn].sum(-1) / units.tested[drawn].sum(-1)


def _change(before: Record, after: Record, metric: str, statistic: Statistic) -> Change:
    values = before.metrics.get(metric), after.metrics.get(metric)
    units = _Units.of(before), _Units.of(after)
    if None in values or units[0] is None or units[1] is None:
        return Change(*values)
    return Change(*values, *_interval(units[0], units[1], statistic))


def _interval(before: _Units, after: _Units, statistic: Statistic) -> tuple[float, float] | tuple[None, None]:
    """95% interval of a statistic's difference; paired where both records decoded the same prompts."""
    sizes = len(before.tokens), len(after.tokens)
    together = before.names == after.names and sizes[0] == sizes[1]

    def difference(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        first, second = (np.moveaxis(each, axis, -1).astype(int) for each in (drawn[0], drawn[-1]))
        return statistic(after, second) - statistic(before, first)

    samples = [np.arange(size) for size in (sizes[:1] if together else sizes)]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = bootstrap(
            samples,
            difference,
            n_resamples=RESAMPLES,
            confidence_level=LEVEL,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(0),
        )
    low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
    return (low, high) if np.isfinite([low, high]).all() else (None, None)  # some resample holds no tested token
