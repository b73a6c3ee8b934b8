"""Plot of the benchmark: milliseconds per token of every decoder, fastest first, one panel per temperature."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from matplotlib.figure import Figure

from experiments.reporting.plots.picture_style import GREY, INK, WIDTH, clear_frame

COLOURS = {"compiled": "#3B2A80", "eager": "#BFB4EA", "": GREY}  # violets, which no drafter has


class Figures(Protocol):
    """Plotted values of a row: times in milliseconds per token."""

    @property
    def temperature(self) -> float: ...
    @property
    def mode(self) -> str: ...
    @property
    def ms(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


def draw_benchmark(rows: Sequence[tuple[str, Figures]], path: Path) -> None:
    """Plot labelled rows and save the picture to a file."""
    temperatures = sorted({row.temperature for _, row in rows})
    most = max(sum(row.temperature == temperature for _, row in rows) for temperature in temperatures)
    figure = Figure(figsize=(WIDTH, 1.2 + 0.3 * most), layout="constrained")
    figure.suptitle("Milliseconds per token, prefill included; lines from the fastest to the slowest repeat")
    axes = figure.subplots(1, len(temperatures), squeeze=False).flat
    for ax, temperature in zip(axes, temperatures, strict=True):
        mine = sorted((row.ms, label, row) for label, row in rows if row.temperature == temperature)[::-1]
        for y, (_, _, row) in enumerate(mine):
            ax.barh(y, row.ms, color=COLOURS[row.mode], height=0.7)
            ax.plot([row.low, row.high], [y, y], color=INK, linewidth=1)
            ax.annotate(f"{row.ms:.2f}", (row.high, y), (4, 0), textcoords="offset points", va="center", fontsize=8)
        ax.set_yticks(range(len(mine)), [label for _, label, _ in mine], fontsize=8)
        ax.set_title(f"T = {temperature:g}", fontsize=10)
        clear_frame(ax, "x")
    figure.savefig(path, dpi=160, facecolor="white")
