"""Comparison of finished trainings: a table, and a plot of held-out measures against steps."""

import json
import math
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console

from experiments.reporting.publish import relative
from experiments.reporting.tables.text_table import Cells, markdown, shown

PROVENANCE_FILE = "provenance.json"  # next to the weights
Facts = dict[str, Any]


class TableOfAll(Callback):
    """Hydra callback that prints a table of all trainings after a sweep."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        print_trainings(read_trainings(Path(config.hydra.sweep.dir)))


def write_trainings(folder: Path) -> None:
    """Write trainings.md and trainings.png for all finished trainings in a folder and its subfolders."""
    trainings = read_trainings(folder)
    (folder / "trainings.md").write_text(markdown(_cells(trainings)), encoding="utf-8")
    draw_trainings(trainings, folder / "trainings.png")
    print(f"trainings.md, trainings.png: {relative(folder)}")


def print_trainings(trainings: dict[str, Facts]) -> None:
    """Print a table with a row per training, or for a single training a row per measure."""
    cells = _cells(trainings)
    if len(trainings) == 1:
        cells = [list(column) for column in zip(*cells, strict=True)]
    table = shown(cells, title="Measures on the target's continuations of held-out text")
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def read_trainings(folder: Path) -> dict[str, Facts]:
    """Provenance of every finished training, by path relative to `folder`, or by drafter for one in `folder` itself."""
    trainings = {}
    for path in sorted(folder.rglob(PROVENANCE_FILE)):
        facts = json.loads(path.read_text())
        name = path.parent.relative_to(folder)
        trainings[str(name) if name.parts else facts["drafter"]] = facts
    return trainings


def draw_trainings(trainings: dict[str, Facts], file: Path) -> None:
    """Plot each held-out measure against optimiser steps, one line per training."""
    from matplotlib.figure import Figure  # takes a second
    from matplotlib.ticker import MaxNLocator

    from experiments.reporting.plots.picture_style import DRAFTER_COLOURS, LINE_STYLES, WIDTH, clear_frame

    points = {
        measure: {
            label: [(entry["step"], entry[measure]) for entry in facts["history"] if measure in entry]
            for label, facts in trainings.items()
        }
        for measure in _measures(trainings)
    }
    shares = {measure for measure, lines in points.items() if all(0 <= value <= 1 for value in _values(lines))}
    top = 1.05 * max((value for measure in shares for value in _values(points[measure])), default=1.0) or 1.0
    across = min(len(points), 2)
    down = math.ceil(len(points) / across)
    figure = Figure(figsize=(WIDTH, 1.2 + 2.6 * down), layout="constrained")
    figure.suptitle("Measures on the target's continuations of held-out text, against optimiser steps")
    grid = figure.subplots(down, across, sharex=True, squeeze=False)
    for ax, (measure, lines) in zip(grid.flat, points.items(), strict=False):
        for index, (label, line) in enumerate(lines.items()):
            colour, style = divmod(index, 2)  # consecutive points of a sweep share a colour
            ax.plot(
                *zip(*line, strict=True),
                color=DRAFTER_COLOURS[colour % len(DRAFTER_COLOURS)],
                linestyle=LINE_STYLES[style],
                marker="o",
                markersize=3,
                label=label,
            )
        ax.set(xlabel="steps", ylabel=measure)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.tick_params(labelbottom=True)
        if measure in shares:
            ax.set_ylim(0, top)
        clear_frame(ax, "y")
    for ax in list(grid.flat)[len(points) :]:
        ax.set_visible(False)
    if len(trainings) > 1:
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(file, dpi=160, facecolor="white")


def _values(lines: dict[str, list[tuple[int, float]]]) -> list[float]:
    return [value for line in lines.values() for _, value in line]


def _cells(trainings: dict[str, Facts]) -> Cells:
    """Cells of a header and one row per training."""
    measures = _measures(trainings)
    table = [["training", "steps", "seconds", *measures]]
    for label, facts in trainings.items():
        values = [f"{facts['held_out'].get(measure, math.nan):.3f}" for measure in measures]
        table.append([label, str(facts["steps"]), str(facts["seconds"]), *values])
    return table


def _measures(trainings: dict[str, Facts]) -> list[str]:
    """Names of the held-out measures, in order of first appearance."""
    kept = ("tokens", "fingerprint")
    return list(dict.fromkeys(key for facts in trainings.values() for key in facts["held_out"] if key not in kept))
