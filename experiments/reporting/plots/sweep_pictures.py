"""Plots of sweeps: one file per setting, one row per condition, one column per quantity."""

import re
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from experiments.reporting.plots.picture_style import (
    INK,
    WIDTH,
    clear_frame,
    line_of,
    looks_by_label,
    place_legend,
)
from experiments.reporting.sweep_charts import Chart, Line, Sweep, charts_of, sweeps_of
from experiments.results.record import Record

Marks = dict[tuple[str, str], Line2D]  # by drafter and label


def draw_sweeps(records: Sequence[Record]) -> dict[str, Figure]:
    """Plot every setting that varies, by the name of the file, such as over_gamma.png."""
    figures = {}
    for sweep in sweeps_of(records):
        rows = [charts for charts in charts_of(sweep) if charts]
        if rows:
            name = re.sub(r"\W+", "_", sweep.key)
            figures[f"over_{name}.png"] = _draw_sweep(sweep, rows)
    return figures


def _draw_sweep(sweep: Sweep, rows: Sequence[Sequence[Chart]]) -> Figure:
    across = max(map(len, rows))
    figure = Figure(figsize=(WIDTH, 1.2 + 2.7 * len(rows)), layout="constrained")
    figure.suptitle(f"Curves over {sweep.name}")
    grid = figure.subplots(len(rows), across, sharex=True, squeeze=False)
    marks = _marks(rows)
    for axes, charts in zip(grid, rows, strict=True):
        for ax, chart in zip(axes, charts, strict=False):
            _draw_chart(ax, chart, sweep, marks)
        for ax in axes[len(charts) :]:
            ax.set_visible(False)
    kinds = {line.kind for charts in rows for chart in charts for line in chart.lines}
    handles = list(marks.values())
    if "theory" in kinds:
        handles.append(Line2D([], [], color=INK, linewidth=0.8, alpha=0.7, label="thin: a loop without overhead"))
    if any(line.break_even for charts in rows for chart in charts for line in chart.lines):
        handles.append(Line2D([], [], color=INK, marker="X", linestyle="", label="break-even"))
    if "baseline" in kinds:
        handles.append(Line2D([], [], color=INK, label="plain decoding"))
    place_legend(figure, handles)
    return figure


def _marks(rows: Sequence[Sequence[Chart]]) -> Marks:
    """Legend entries of the measured lines."""
    lines = [line for charts in rows for chart in charts for line in chart.lines if line.kind == "measured"]
    looks = looks_by_label((line.drafter, line.label) for line in lines)
    return {(drafter, label): line_of(label, look) for (drafter, label), look in looks.items()}


def _draw_chart(ax: Axes, chart: Chart, sweep: Sweep, marks: Marks) -> None:
    for line in chart.lines:
        _draw_line(ax, line, marks)
    if chart.is_speedup:
        ax.axhline(1, color=INK, linewidth=1, linestyle="--", zorder=1)
    scale = sweep.scale
    if scale.in_powers:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlim=(scale.least, scale.most), ylim=(0, chart.top), ylabel=chart.quantity)
    ax.set_xticks(sweep.ticks(), [f"{value:g}" for value in sweep.ticks()])
    ax.tick_params(labelbottom=True)
    ax.set_xlabel(sweep.name)
    ax.set_title(chart.title, fontsize=10)
    clear_frame(ax, "y")


def _draw_line(ax: Axes, line: Line, marks: Marks) -> None:
    xs, ys = [value.x for value in line.values], [value.y for value in line.values]
    if line.kind == "baseline":
        ax.plot(xs, ys, color=INK)
        return
    mark = marks[line.drafter, line.label]
    colour = mark.get_color()
    if line.kind == "theory":
        ax.plot(xs, ys, color=colour, linewidth=0.8, alpha=0.7)
        return
    ax.plot(xs, ys, color=colour, linestyle=mark.get_linestyle(), marker=mark.get_marker(), markersize=5, zorder=4)
    band_xs, lows, highs = ([each[index] for each in line.band] for index in range(3))
    ax.fill_between(band_xs, lows, highs, color=colour, alpha=0.12, linewidth=0)
    if line.break_even:
        ax.plot(line.break_even, 1, "X", color=colour, markersize=9, markeredgecolor="white", zorder=5)
