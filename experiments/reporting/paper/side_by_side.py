"""Comparison of a table of the paper with our values, as text and as data."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from experiments.reporting.tables.text_table import Cells

MISSING = "–"
Number = float | None
OTHER_MODELS = (
    "Comparable: the order of the rows, and the values of the theorems for α, γ and c. Not comparable: the values of α "
    "and speed. The paper's models have up to 11B parameters and run on a TPU-v4; ours have far fewer."
)


@dataclass(frozen=True)
class Row:
    """A row of the comparison.

    Attributes:
        labels: labels by heading.
        compared: (published value, our value) by quantity.
        ours: our values without a published counterpart, by quantity.
    """

    labels: dict[str, str]
    compared: dict[str, tuple[Number, Number]] = field(default_factory=dict)
    ours: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class SideBySide:
    """A comparison: rows with a title and notes."""

    title: str
    rows: list[Row]
    notes: list[str]

    def cells(self) -> Cells:
        """Rows of strings, heading first; a missing value is a dash."""
        labels, compared, ours = (
            _keys(getattr(row, part) for row in self.rows) for part in ("labels", "compared", "ours")
        )
        heads = [*labels, *(f"{key}, {whose}" for key in compared for whose in ("paper", "ours")), *ours]
        cells = [heads]
        for row in self.rows:
            pairs = [row.compared.get(key, (None, None)) for key in compared]
            figures = [_shown(figure) for pair in pairs for figure in pair]
            cells.append(
                [*(row.labels.get(key, "") for key in labels), *figures, *(_shown(row.ours.get(k)) for k in ours)]
            )
        return cells

    def as_data(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        rows = [
            asdict(row) | {"compared": {key: {"paper": p, "ours": o} for key, (p, o) in row.compared.items()}}
            for row in self.rows
        ]
        return {"title": self.title, "rows": rows, "notes": self.notes}


def _keys(parts: Iterable[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for part in parts for key in part))


def _shown(figure: Number) -> str:
    if figure is None:
        return MISSING
    return str(int(figure)) if float(figure).is_integer() and abs(figure) >= 2 else f"{figure:.3g}"


def order_note(claim: str, figures: dict[str, float]) -> str:
    """The claim that values rise, followed by yes or NO and the values."""
    values = list(figures.values())
    if len(values) < 2:
        return f"{claim}: {MISSING}"
    holds = all(before <= after for before, after in pairwise(values))
    return (
        f"{claim}: {'yes' if holds else 'NO'} ({', '.join(f'{name} {value:.3f}' for name, value in figures.items())})"
    )
