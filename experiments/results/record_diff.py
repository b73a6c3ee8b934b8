"""Differences between two sets of records, per point, with bootstrap intervals over prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from experiments.reporting.tables.text_table import ALARM, Cells
from experiments.results.prompt_bootstrap import Statistic, Units, alpha, difference_interval, speedup
from experiments.results.record import Record
from experiments.results.records import group_records

STAR = " * the interval excludes 0."
NOTE = (
    "Each difference is followed by its 95% interval over prompts of the same kind (percentile bootstrap; where both "
    "runs decoded the same prompts, before and after are resampled together). The interval does not include the noise "
    f"of the machine, which shows in the spread of the repeats.{STAR}"
)


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
            speedup=_change(partners[id(record)], record, "speedup/measured", speedup),
            alpha=_change(partners[id(record)], record, "alpha/empirical", alpha),
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
    table.caption = Text("\n" + "\n".join([NOTE, *diff_notes(found)]), style="dim", justify="left")
    table.caption.highlight_regex(rf"(?m)^{ALARM}.*$", "not dim bold red")
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


def diff_notes(found: RecordDiff) -> list[str]:
    """Lines below the table: pairs that do not compare like with like, then points measured in only one set."""
    other_prompts = [pair.label for pair in found.pairs if _has_other_prompts(pair)]
    other_lengths = [pair.label for pair in found.pairs if _max_new_tokens(pair.before) != _max_new_tokens(pair.after)]
    lines = {
        f"{ALARM} PROMPTS DIFFER between before and after, which by itself changes α and speedup": other_prompts,
        f"{ALARM} LENGTHS DIFFER (max_new_tokens), which by itself changes α and speedup": other_lengths,
        "Only measured before": found.only_before,
        "Only measured after": found.only_after,
    }
    return [f"{line}: {', '.join(names)}" for line, names in lines.items() if names]


def _has_other_prompts(pair: Pair) -> bool:
    before, after = (
        [(row.get("name"), row.get("prompt_tokens")) for row in each.prompts] for each in (pair.before, pair.after)
    )
    return bool(before and after) and before != after


def _max_new_tokens(record: Record) -> Any:
    return record.point.get("max_new_tokens")


def _cells(change: Change, digits: int) -> list[str]:
    sides = ["–" if value is None else f"{value:.{digits}f}" for value in (change.before, change.after)]
    return [*sides, difference_text(change, digits)]


def _settings(record: Record) -> str:
    return json.dumps(record.point, sort_keys=True)


def _name(record: Record) -> str:
    return str(record.name)


def _change(before: Record, after: Record, metric: str, statistic: Statistic) -> Change:
    values = before.metrics.get(metric), after.metrics.get(metric)
    units = [Units.of(each.prompts or [], _prompts_per_batch(each)) for each in (before, after)]
    if None in values or units[0] is None or units[1] is None:
        return Change(*values)
    return Change(*values, *difference_interval(units[0], units[1], statistic))


def _prompts_per_batch(record: Record) -> int:
    """Number of prompts that share one time."""
    return (len(record.prompts or []) if record.point.get("refill") else record.point.get("batch_size")) or 1
