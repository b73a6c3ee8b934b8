"""Measured points and their table, prepared for the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.reporting.plots.picture_style import Look, look_of
from experiments.reporting.tables.comparison_table import (
    COLUMNS,
    GAMMA,
    GUARANTEE,
    MEASURED,
    MISSING,
    Column,
    baselines,
    guarantee,
    is_clearly_faster,
    row_names,
)
from experiments.reporting.tables.text_table import ALARM
from experiments.results.record import Record
from experiments.results.records import Group, is_lossy

TEXTS = ("drafter", "setting", "tokens equal")  # headings of columns sorted as text
# Columns whose cells have a second value below the first, which is a column of its own in other tables.
BELOW = {
    "α empirical": "95% of α",
    "τ": "95% of τ",
    "measured speedup": "95% of speedup",
    "min–max": "end to end",
    "operations": "operations (Thm 3.11)",
}
MEANINGS = {
    "γ": "maximum depth of a draft; with gamma=auto, the mean of the gammas chosen",
    "α overlap": "mean of Σ min(p, q) over tested tokens: the paper's α",
    "α empirical": "accepted ÷ tested tokens; below it the 95% interval over prompts like these",
    "τ": "tokens per target pass; below it the 95% interval over prompts like these",
    "τ by Eq. 1": "tokens per target pass, by Eq. 1 from α",
    "distinct 4-grams": "share of distinct ones among the 4-grams of an output, mean over the prompts",
    "c": "time of a draft step ÷ time of a target pass over one row",
    "predicted (Thm 3.8)": "speedup by Theorem 3.8, from the measured α and c",
    "zero-overhead speedup": "τ ÷ (d + v): speedup of a decoding loop without overhead",
    "measured speedup": "time per token of plain decoding ÷ that of the point, prefill excluded; below it the 95% "
    "interval over prompts like these",
    "min–max": "speedup of the slowest and the fastest repeat; below it the speedup with prefill included",
    "efficiency": "measured ÷ zero-overhead speedup",
    "operations": "arithmetic operations per token ÷ those of plain decoding, counted; below it by Theorem 3.11, from "
    "the measured α and the counted operations of a draft step",
    "tokens equal": "at temperature 0: whether the tokens equal those of plain decoding",
}


@dataclass(frozen=True)
class Point:
    """A record with its label and group on the page."""

    record: Record
    label: str
    group: str

    @property
    def drafter(self) -> str:
        return str(self.record.point.get("drafter"))

    @property
    def look(self) -> Look:
        return look_of(self.drafter)

    @property
    def is_lossy(self) -> bool:
        return is_lossy(self.record)

    @property
    def rule(self) -> str:
        """Gamma policy (unless fixed), verifier and guarantee, in one line."""
        point = self.record.point
        policy = None if point.get("gamma_policy") == "fixed" else point.get("gamma_policy")
        promise = guarantee(self.record) if point.get("guarantee") else None
        return " · ".join(str(shown) for shown in (policy, point.get("verifier"), promise) if shown)

    def metric(self, key: str) -> float | None:
        value = self.record.metrics.get(key)
        return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Heading:
    """Heading of a column.

    Attributes:
        name: the column's name.
        meaning: explanation of the column.
        is_text: whether the column is sorted as text.
        below: name of the second values in its cells; "" if it has none.
    """

    name: str
    meaning: str = ""
    is_text: bool = False
    below: str = ""


@dataclass(frozen=True)
class Cell:
    text: str
    mark: str = ""  # "alarm", "good", "setting" or ""
    below: str = ""  # second value, below the text


@dataclass(frozen=True)
class TableRow:
    """Table row of a point, or of a baseline of a group."""

    name: str
    note: str
    group: str
    cells: list[Cell]
    point: Point | None


def points_of(groups: Sequence[Group]) -> list[Point]:
    """All points, in the order of the table in the terminal."""
    return [
        Point(record, label, group.title)
        for group in groups
        for label, record in zip(group.labels, group.records, strict=True)
    ]


def headings(groups: Sequence[Group]) -> list[Heading]:
    """Columns of the table after the drafter."""
    first, *names = [column.name for column in _columns()]
    settings = ["setting"] if len(groups) > 1 else []
    return [
        Heading(name, MEANINGS.get(name, ""), is_text=name in TEXTS, below=BELOW.get(name, ""))
        for name in (first, *settings, *names)
    ]


def table_rows(groups: Sequence[Group]) -> list[TableRow]:
    """One row per point; the baselines end every group."""
    points, rows = iter(points_of(groups)), []
    for group in groups:
        settings = [Cell(group.title, "setting")] if len(groups) > 1 else []
        for name in row_names(group):
            point = next(points)
            first, *cells = [_cell(column, point.record) for column in _columns()]
            rows.append(TableRow(name, point.rule, group.title, [first, *settings, *cells], point))
        for name, shown in baselines(group):
            first, *cells = [Cell(shown.get(column, "")) for column in _columns()]
            rows.append(TableRow(name, "", group.title, [first, *settings, *cells], None))
    return rows


def _columns() -> list[Column]:
    """Columns of the page: the measured speedup first, for narrow screens; the guarantee is below a point's name."""
    within = BELOW.values()
    return [MEASURED, *(each for each in COLUMNS if each not in (MEASURED, GUARANTEE) and each.name not in within)]


def _cell(column: Column, record: Record) -> Cell:
    text = column.cell(record)
    if column is GAMMA:
        text = text.split()[0]
    is_good = column is MEASURED and is_clearly_faster(record)
    mark = "alarm" if ALARM in text else "good" if is_good else ""
    (below,) = [each.cell(record) for each in COLUMNS if each.name == BELOW.get(column.name)] or [MISSING]
    return Cell(text, mark, "" if below == MISSING else below)
