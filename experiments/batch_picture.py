"""Throughput against batch size, measured and predicted, and where speculation stops paying."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.picture_style import INK, WIDTH, clear_frame
from experiments.records import ROW_SETTINGS, Record, group_records


@dataclass(frozen=True)
class Curve:
    """One drafter at several batch sizes.

    Attributes:
        label: as the table calls it.
        drafter: whose it is.
        sizes: batch sizes, rising; the other lists have an entry for each.
        plain: tokens per second of the yardstick.
        measured: speedup over it.
        predicted: speedup that the parts of a round allow, each timed alone at that batch size.
    """

    label: str
    drafter: str
    sizes: list[int]
    plain: list[float]
    measured: list[float]
    predicted: list[float]


def curves_by_panel(records: Sequence[Record]) -> dict[str, list[Curve]]:
    """Points that differ in their batch size only, as curves; by all that is no row's own. One size is no curve."""
    labels = {
        id(record): label
        for group in group_records(records)
        for record, label in zip(group.records, group.labels, strict=True)
    }
    needed = ("speedup/measured", "speedup/attainable", "yardstick_ms_per_token")
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        if all(record["metrics"].get(key) is not None for key in needed):
            fixed = {
                name: value for name, value in record["point"].items() if name not in (*ROW_SETTINGS, "batch_size")
            }
            panel = found.setdefault(json.dumps(fixed, sort_keys=True), {})
            panel.setdefault(labels[id(record)], {})[record["point"].get("batch_size", 1)] = record
    panels = {
        settings: [_curve(label, by_size) for label, by_size in sorted(panel.items()) if len(by_size) > 1]
        for settings, panel in sorted(found.items())
    }
    panels = {settings: curves for settings, curves in panels.items() if curves}
    return dict(zip(_titles(list(panels)), panels.values(), strict=True))


def _curve(label: str, by_size: dict[int, Record]) -> Curve:
    sizes = sorted(by_size)
    metrics = [by_size[size]["metrics"] for size in sizes]
    return Curve(
        label=label,
        drafter=str(by_size[sizes[0]]["point"].get("drafter")),
        sizes=sizes,
        plain=[1000 / each["yardstick_ms_per_token"] for each in metrics],
        measured=[each["speedup/measured"] for each in metrics],
        predicted=[each["speedup/attainable"] for each in metrics],
    )


def _titles(panels: Sequence[str]) -> list[str]:
    """What tells the panels apart, the temperature first."""
    fixed = [json.loads(settings) for settings in panels]
    names = sorted({name for settings in fixed for name in settings} - {"temperature"})
    telling = [name for name in names if len({json.dumps(settings.get(name)) for settings in fixed}) > 1]
    return [
        ", ".join([f"T = {settings.get('temperature', 0):g}", *(f"{name} {settings.get(name)}" for name in telling)])
        for settings in fixed
    ]


def pays_up_to(sizes: Sequence[int], speedups: Sequence[float]) -> float | None:
    """The batch size at which a speedup falls to 1, on a line in log2 between two sizes; None where it does not.

    0 says that it pays at no size that was measured.
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
    """Tokens per second of plain decoding at every batch size, rising.

    The yardstick was measured anew with every curve; this is the middle of them.
    """
    sizes = sorted({size for curve in curves for size in curve.sizes})
    plain = {
        size: sorted(curve.plain[curve.sizes.index(size)] for curve in curves if size in curve.sizes) for size in sizes
    }
    return {size: of_size[len(of_size) // 2] for size, of_size in plain.items()}


def draw_batches(records: Sequence[Record], colours: dict[str, str]) -> Figure | None:
    """One panel per temperature and setting, two across; None where no point was measured at several batch sizes."""
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
        Line2D([], [], color=INK, marker="X", linestyle="", label="stops paying"),
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
