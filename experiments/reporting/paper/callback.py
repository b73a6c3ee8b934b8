"""Hydra callback that compares a sweep with a table or the figures of the paper."""

import json
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from experiments.reporting.paper.tables import table_1, table_2, table_3, table_4, table_5
from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import markdown, shown
from experiments.results.records import load_records

TABLES = {"table_1": table_1, "table_2": table_2, "table_3": table_3, "table_4": table_4, "table_5": table_5}
FIGURES = "figures"


class BesideThePaper(Callback):
    """Hydra callback that saves the comparison, and prints the table, after the last point of a sweep."""

    def __init__(self, shows: str):
        """
        Args:
            shows: table_1 to table_5, or figures.

        Raises:
            ValueError: shows is none of these.
        """
        if shows not in (*TABLES, FIGURES):
            raise ValueError(f"hydra.callbacks.paper.shows is {shows!r}; allowed: {', '.join((*TABLES, FIGURES))}")
        self._shows = shows

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        from experiments.reporting.paper.pictures import draw_figures, draw_side_by_side  # matplotlib takes a second

        folder = Path(config.hydra.sweep.dir)
        records = load_records(folder)
        file = folder / f"paper_{self._shows}"
        if self._shows == FIGURES:
            picture = draw_figures(records)
        else:
            table = TABLES[self._shows](records)
            picture = draw_side_by_side(table)
            file.with_suffix(".json").write_text(json.dumps(table.as_data(), indent=1, ensure_ascii=False) + "\n")
            notes = "\n".join(f"- {note}" for note in table.notes)
            text = f"# {table.title}\n\n{markdown(table.cells())}\n{notes}\n"
            file.with_suffix(".md").write_text(text, encoding="utf-8")
            console = Console(width=None if sys.stdout.isatty() else 160)
            console.print(shown(table.cells(), title=table.title, caption="\n".join(table.notes)), highlight=False)
        picture.savefig(file.with_suffix(".png"), dpi=160, facecolor="white")
        print(f"{file.name}: {relative(folder)}")
