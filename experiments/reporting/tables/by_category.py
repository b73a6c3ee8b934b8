"""Speed and acceptance by kind of prompt, as Spec-Bench reports them (Xia et al., 2024)."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import Cells, markdown, shown
from experiments.results.acceptance import group_of
from experiments.results.record import Record
from experiments.results.records import load_records

NOTE = (
    "speedup: seconds of plain decoding ÷ seconds of the drafter, prefill included, summed over a group's prompts. "
    "tokens per pass: Spec-Bench's mean accepted tokens, which includes the target's own token."
)


def by_category(records: Sequence[Record]) -> Cells:
    """Table rows, heading first: per point, speedup and tokens per pass of every group and of all prompts."""
    groups = list(dict.fromkeys(group_of(row["category"]) for record in records for row in record.prompts))
    cells = [
        ["drafter", "T", *(f"{group} {what}" for group in (*groups, "all") for what in ("speedup", "tokens per pass"))]
    ]
    for record in records:
        rows = [(group_of(row["category"]), row) for row in record.prompts]
        figures = [
            figure
            for group in (*groups, "all")
            for figure in _figures([row for its_group, row in rows if group in (its_group, "all")])
        ]
        cells.append([str(record.point["drafter"]), f"{record.point['temperature']:g}", *figures])
    return cells


def _figures(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Speedup and tokens per pass of prompts; a pass is a round, and the prefill's token belongs to none."""
    if not rows:
        return "–", "–"
    speedup = sum(row["baseline_seconds"] for row in rows) / sum(row["seconds"] for row in rows)
    known = [row for row in rows if row["tau"]]
    passes = sum((row["new_tokens"] - 1) / row["tau"] for row in known)
    tau = sum(row["new_tokens"] - 1 for row in known) / passes if passes else None
    return f"{speedup:.2f}", "–" if tau is None else f"{tau:.2f}"


class TableByCategory(Callback):
    """Hydra callback that prints and saves the table after the last point of a sweep."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.sweep.dir)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the sweep's report lists failed points
            records = load_records(folder)
        if not records:
            return
        cells = by_category(records)
        (folder / "by_category.md").write_text(f"{markdown(cells)}\n{NOTE}\n", encoding="utf-8")
        # Transposed, since there are many groups and few drafters.
        upright = [list(column) for column in zip(*cells, strict=True)]
        table = shown(upright, title="By kind of prompt", caption=NOTE)
        Console(width=None if sys.stdout.isatty() else 120).print(table)
        print(f"by_category.md: {relative(folder)}")
