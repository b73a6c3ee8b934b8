"""A table of the paper with ours beside it: as text for the terminal and for documents, and as data."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.cells import Cells

MISSING = "–"
Number = float | None


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        labels: what it is about, by heading.
        compared: the published figure and ours, by quantity.
        ours: what has no published counterpart.
    """

    labels: dict[str, str]
    compared: dict[str, tuple[Number, Number]] = field(default_factory=dict)
    ours: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class SideBySide:
    """Rows of like form, and what a reader must know of them."""

    title: str
    rows: list[Row]
    notes: list[str]

    def cells(self) -> Cells:
        """A heading and a line per row; a figure that is not there is a dash."""
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
        """The same as plain data."""
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
