"""Measured points as the page knows them, and its table of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.picture_style import colours_by_name
from experiments.records import Group, Record, is_lossy
from experiments.report import ALARM, COLUMNS, GAMMA, GUARANTEE, LOSSY, MEASURED, Column, baselines, row_names

TEXTS = ("drafter", "setting", "tokens equal")  # headings of columns that are sorted as text
MEANINGS = {
    "γ": "depth of a draft, at most",
    "α overlap": "mean of Σ min(p, q) over tested tokens: the paper's α",
    "α empirical": "accepted ÷ tested tokens",
    "τ": "tokens per target pass",
    "τ by Eq. 1": "tokens per target pass, as Eq. 1 makes them of α",
    "c": "time of a draft step in one-row target passes",
    "theorem 3.8": "speedup by Theorem 3.8, from the measured α and c",
    "attainable": "τ ÷ (d + v): what a loop of no cost would reach",
    "measured speedup": "plain decoding's time per token ÷ this one's, reading the prompts excluded",
    "spread": "of the repeats",
    "end to end": "speedup, reading the prompts included",
    "efficiency": "measured ÷ attainable",
    "tokens equal": "at temperature 0: to plain decoding",
}


@dataclass(frozen=True)
class Point:
    """A record with what the page calls it; all pictures of it have the same colour."""

    record: Record
    label: str
    group: str
    colour: str

    @property
    def drafter(self) -> str:
        return str(self.record["point"].get("drafter"))

    @property
    def is_lossy(self) -> bool:
        return is_lossy(self.record)

    @property
    def rule(self) -> str:
        """How its drafts end and are verified, and what that promises."""
        point = self.record["point"]
        policy = None if point.get("gamma_policy") == "fixed" else point.get("gamma_policy")
        guarantee = LOSSY if self.is_lossy else point.get("guarantee")
        return " · ".join(str(told) for told in (policy, point.get("verifier"), guarantee) if told)

    def metric(self, key: str) -> float | None:
        value = self.record["metrics"].get(key)
        return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True)
class Cell:
    text: str
    mark: str = ""  # alarm, good or nothing


@dataclass(frozen=True)
class TableRow:
    """A point, or plain decoding in a group."""

    name: str
    note: str
    group: str
    cells: list[Cell]
    point: Point | None


def points_of(groups: Sequence[Group]) -> list[Point]:
    """All points, in the order of the terminal's table."""
    colours = colours_by_name(str(record["point"].get("drafter")) for group in groups for record in group.records)
    return [
        Point(record, label, group.title, colours[str(record["point"].get("drafter"))])
        for group in groups
        for label, record in zip(group.labels, group.records, strict=True)
    ]


def headings() -> list[tuple[str, str, bool]]:
    """Of the table's columns behind the first two: heading, meaning, and whether it is sorted as text."""
    names = [" ".join(column.heading.replace("-\n", "").split()) for column in _columns()]
    return [(name, MEANINGS.get(name, ""), name in TEXTS) for name in names]


def table_rows(groups: Sequence[Group]) -> list[TableRow]:
    """A row per point, and at the end of every group plain decoding."""
    points, rows = iter(points_of(groups)), []
    for group in groups:
        for name in row_names(group):
            point = next(points)
            cells = [_cell(column, point.record) for column in _columns()]
            rows.append(TableRow(name, point.rule, group.title, cells, point))
        for name, told in baselines(group):
            cells = [Cell(told.get(column, "")) for column in _columns()]
            rows.append(TableRow(name, "", group.title, cells, None))
    return rows


def _columns() -> list[Column]:
    """Guarantee and gamma policy stand below the name."""
    return [column for column in COLUMNS if column is not GUARANTEE]


def _cell(column: Column, record: Record) -> Cell:
    text = column.cell(record)
    if column is GAMMA:
        text = text.split()[0]
    if ALARM in text:
        return Cell(text, "alarm")
    is_faster = column is MEASURED and (record["metrics"].get("speedup/measured_low") or 0) > 1
    return Cell(text, "good" if is_faster else "")
