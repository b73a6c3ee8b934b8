"""Hydra callback that compares a sweep with tables or the figures of the paper."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from experiments.reporting.paper.side_by_side import SideBySide
from experiments.reporting.paper.tables import table_1, table_3, table_5
from experiments.reporting.paper.walltimes import table_2, table_4
from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import markdown, shown
from experiments.results.record import Record
from experiments.results.records import load_records

TABLES = {"table_1": table_1, "table_2": table_2, "table_3": table_3, "table_4": table_4, "table_5": table_5}
FIGURES = "figures"
DPI = 160


class BesideThePaper(Callback):
    """Hydra callback that saves the comparisons, and prints the tables, after the last point of a sweep."""

    def __init__(self, shows: list[str]):
        """
        Args:
            shows: some of table_1 to table_5 and figures.

        Raises:
            ValueError: another name.
        """
        for name in shows:
            if name not in (*TABLES, FIGURES):
                raise ValueError(f"hydra.callbacks.paper.shows has {name!r}; allowed: {', '.join((*TABLES, FIGURES))}")
        self._shows = shows

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        records = load_records(folder)
        for name in self._shows:
            if name == FIGURES:
                _save_figures(records, folder)
            else:
                _save_table(TABLES[name](records), folder / f"paper_{name}")


def _save_figures(records: Sequence[Record], folder: Path) -> None:
    from experiments.reporting.paper.figures import figures_of  # matplotlib takes a second

    for name, figure in figures_of(records).items():
        figure.savefig(folder / f"paper_{name}.png", dpi=DPI, facecolor="white")
        print(f"paper_{name}.png: {relative(folder)}")


def _save_table(table: SideBySide, file: Path) -> None:
    """Print a table and save it as Markdown, as data and as a picture."""
    from experiments.reporting.paper.pictures import draw_side_by_side

    file.with_suffix(".json").write_text(json.dumps(table.as_data(), indent=1, ensure_ascii=False) + "\n")
    notes = "\n".join(f"- {note}" for note in table.notes)
    text = f"# {table.title}\n\n{markdown(table.cells())}\n{notes}\n"
    file.with_suffix(".md").write_text(text, encoding="utf-8")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(shown(table.cells(), title=table.title, caption="\n".join(table.notes)), highlight=False)
    draw_side_by_side(table).savefig(file.with_suffix(".png"), dpi=DPI, facecolor="white")
    print(f"{file.name}: {relative(file.parent)}")
