"""Measured points of one run, as a notebook or a terminal shows them, and as a DataFrame."""

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult

from experiments.reporting.publish import mirror, write_report
from experiments.reporting.tables.comparison_table import comparison_table, table_notes, tables_of_groups
from experiments.results.record import Record
from experiments.tracking.tracker import JsonlTracker

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

PLAIN_WIDTH = 160  # characters per line of the table as text


@dataclass(frozen=True)
class Comparison:
    """Measured points of one run.

    Attributes:
        records: one per drafter, as in record.json.
    """

    records: Sequence[Record]

    def to_dataframe(self) -> "DataFrame":
        """A row per point: its name, its settings, and its metrics by the names in ARCHITECTURE.md.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise ImportError(
                "to_dataframe needs the package pandas: pip install pandas; without it, records[0].metrics has the "
                "same numbers"
            ) from None
        return DataFrame([{"name": record.name, **record.point, **record.metrics} for record in self.records])

    def picture(self) -> "Picture | None":
        """Plot of measured, zero-overhead and predicted speedups; None if no speedup was measured."""
        from experiments.reporting.plots.pictures import draw_speedups  # a slow import

        figure = draw_speedups(self.records)
        return None if figure is None else Picture(figure)

    def save(self, folder: str | Path) -> Path:
        """Write records, table, page and pictures to a folder, as `python -m experiments.compare` does.

        Args:
            folder: a new or empty folder; `python -m experiments.compare records=FOLDER` reads it.

        Raises:
            ValueError: the folder holds files.
        """
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"folder is '{folder}', which is in use; allowed: a new or empty folder")
        mirror(self.records, JsonlTracker(), folder=folder)
        write_report(self.records, folder)
        return folder

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield comparison_table(self.records, width=options.max_width)

    def __repr__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=PLAIN_WIDTH, color_system=None, force_jupyter=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def _repr_html_(self) -> str:
        """HTML for notebooks: a table per group, then the notes."""
        parts = []
        for title, (heading, *rows) in tables_of_groups(self.records):
            head = "".join(f"<th>{html.escape(name)}</th>" for name in heading)
            body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
            caption = f"<caption><b>{html.escape(title)}</b></caption>"
            parts.append(f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        notes = "<br>".join(map(html.escape, table_notes(self.records)))
        return f"{''.join(parts)}<p><small>{notes}</small></p>"


@dataclass(frozen=True)
class Picture:
    """A plot that notebooks display.

    Attributes:
        figure: the matplotlib figure; `figure.savefig(FILE)` writes it.
    """

    figure: "Figure"

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=100, facecolor="white")
        return file.getvalue()
