"""Plot of throughput against batch size, measured and predicted, with break-even batch sizes."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.reporting.plots.picture_style import INK, WIDTH, clear_frame
from experiments.results.record import Record
from experiments.results.records import ROW_SETTINGS, group_records


@dataclass(frozen=True)
class Curve:
    """One drafter at several batch sizes.

    Attributes:
        label: label of the points in the table.
        drafter: name of the drafter.
        sizes: batch sizes, ascending; the other lists have one entry per size.
        plain: tokens per second of the baseline.
        measured: speedup over the baseline.
        predicted: zero-overhead speedup, from the parts of a round timed separately at that batch size.
    """

    label: str
    drafter: str
    sizes: list[int]
    plain: list[float]
    measured: list[float]
    predicted: list[float]


def curves_by_panel(records: Sequence[Record]) -> dict[str, list[Curve]]:
    """Curves over batch size, by the title of their panel.

    Points of a curve differ only in batch size; curves of a panel differ only in ROW_SETTINGS. Points measured at one
    batch size only are left out.
    """
    labels = {
        id(record): label
        for group in group_records(records)
        for record, label in zip(group.records, group.labels, strict=True)
    }
    needed = ("speedup/measured", "speedup/zero_overhead", "baseline_ms_per_token")
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        if all(record.metrics.get(key) is not None for key in needed):
            fixed = {name: value for name, value in record.point.items() if name not in (*ROW_SETTINGS, "batch_size")}
            panel = found.setdefault(json.dumps(fixed, sort_keys=True), {})
            panel.setdefault(labels[id(record)], {})[record.point.get("batch_size", 1)] = record
    panels = {
        settings: [_curve(label, by_size) for label, by_size in sorted(panel.items()) if len(by_size) > 1]
        for settings, panel in sorted(found.items())
    }
    panels = {settings: curves for settings, curves in panels.items() if curves}
    return dict(zip(_titles(list(panels)), panels.values(), strict=True))


def _curve(label: str, by_size: dict[int, Record]) -> Curve:
    sizes = sorted(by_size)
    metrics = [by_size[size].metrics for size in sizes]
    return Curve(
        label=label,
        drafter=str(by_size[sizes[0]].point.get("drafter")),
        sizes=sizes,
        plain=[1000 / each["baseline_ms_per_token"] for each in metrics],
        measured=[each["speedup/measured"] for each in metrics],
        predicted=[each["speedup/zero_overhead"] for each in metrics],
    )


def _titles(panels: Sequence[str]) -> list[str]:
    """Titles of the panels: the temperature, then the settings that differ between panels."""
    fixed = [json.loads(settings) for settings in panels]
    names = sorted({name for settings in fixed for name in settings} - {"temperature"})
    telling = [name for name in names if len({json.dumps(settings.get(name)) for settings in fixed}) > 1]
    return [
        ", ".join([f"T = {settings.get('temperature', 0):g}", *(f"{name} {settings.get(name)}" for name in telling)])
        for settings in fixed
    ]


def pays_up_to(sizes: Sequence[int], speedups: Sequence[float]) -> float | None:
    """Break-even batch size, at which the speedup falls to 1.

    Args:
        sizes: batch sizes, ascending.
        speedups: measured speedup at each size.

    Returns:
        the size, interpolated linearly in its logarithm; 0 if the speedup is at most 1 at the first size; None if it
        stays above 1.
    """
    if speedups[0] <= 1:
        return 0.0
    for index in range(1, len(sizes)):
        if speedups[index] <= 1:
            before, after = speedups[index - 1], speedups[index]
            share = (before - 1) / (before - after)
            return float(sizes[index - 1] * (sizes[index] / sizes[index - 1]) ** share)
    return None


def plain_by_size(curves: Sequence[Curve]) -> dict[int, float]:
    """Tokens per second of plain decoding by batch size, ascending.

    Every curve has its own measurement of the baseline; this is their median (the upper one of an even number).
    """
    sizes = sorted({size for curve in curves for size in curve.sizes})
    plain = {
        size: sorted(curve.plain[curve.sizes.index(size)] for curve in curves if size in curve.sizes) for size in sizes
    }
    return {size: of_size[len(of_size) // 2] for size, of_size in plain.items()}


def draw_batches(records: Sequence[Record], colours: dict[str, str]) -> Figure | None:
    """Plot one panel per temperature and setting, two per row; None without several batch sizes."""
    panels = curves_by_panel(records)
    if not panels:
        return None
    down = math.ceil(len(panels) / 2)
    figure = Figure(figsize=(WIDTH, 1.4 + 3.6 * down), layout="constrained")
    figure.suptitle("Tokens per second against batch size")
    grid = list(figure.subplots(down, min(2, len(panels)), sharex=True, sharey=True, squeeze=False).flat)
    for ax, (title, curves) in zip(grid, panels.items(), strict=False):
        _draw_panel(ax, curves, colours)
        ax.set_title(title, fontsize=10)
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    marks = [
        Line2D([], [], color=INK, marker="s", label="plain decoding"),
        Line2D([], [], color=INK, marker="o", label="speculative, measured"),
        Line2D([], [], color=INK, linestyle="--", label="predicted from d and v at that batch size"),
        Line2D([], [], color=INK, marker="X", linestyle="", label="break-even"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_panel(ax: Axes, curves: list[Curve], colours: dict[str, str]) -> None:
    middle = plain_by_size(curves)
    sizes = list(middle)
    ax.plot(sizes, list(middle.values()), color=INK, marker="s", markersize=5, label="plain decoding")
    for curve in curves:
        colour, base = colours[curve.drafter], [middle[size] for size in curve.sizes]
        ax.plot(curve.sizes, _times(base, curve.measured), color=colour, marker="o", markersize=5, label=curve.label)
        ax.plot(curve.sizes, _times(base, curve.predicted), color=colour, linestyle="--", linewidth=1)
        if end := pays_up_to(curve.sizes, curve.measured):
            height = 2 ** np.interp(np.log2(end), np.log2(curve.sizes), np.log2(base))
            ax.plot(end, height, "X", color=colour, markersize=10, markeredgecolor="white", zorder=5)
            ax.annotate(f"{end:.0f}", (end, height), (0, -14), textcoords="offset points", ha="center", fontsize=8)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set(xlabel="batch size", ylabel="tokens per second")
    clear_frame(ax, "both")
    ax.legend(frameon=False, fontsize=8)


def _times(base: Sequence[float], factors: Sequence[float]) -> list[float]:
    return [each * factor for each, factor in zip(base, factors, strict=True)]
