"""Mean accepted lengths of measured points, by the definitions of other projects."""

from collections.abc import Sequence
from dataclasses import fields

from experiments.reporting.tables.text_table import Cells
from experiments.results.record import Record
from framework.metrics.accepted_length import PREFIX, AcceptedLengths

NOTE = "docs/glossary.md has the definitions. A dash: a record of an earlier version, or nothing was drafted."
NAMES = [each.name for each in fields(AcceptedLengths)]


def accepted_lengths(records: Sequence[Record]) -> Cells:
    """Table rows, heading first: per point, one column per definition."""
    cells = [["drafter", "T", "gamma", *(name.replace("_", " ") for name in NAMES)]]
    for record in records:
        values = [record.metrics.get(f"{PREFIX}/{name}") for name in NAMES]
        point = [str(record.point["drafter"]), f"{record.point['temperature']:g}", str(record.point["gamma"])]
        cells.append(point + ["–" if value is None else f"{value:.3f}" for value in values])
    return cells
