"""Plots of measured points: speedups, acceptance by position, time per round, curves of sweeps, gamma policies."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.reporting.plots.gamma_picture import draw_gamma_policies
from experiments.reporting.plots.picture_style import (
    INK,
    LONGEST_LABEL,
    WIDTH,
    LineLook,
    clear_frame,
    line_of,
    look_of,
    looks_by_label,
    place_legend,
)
from experiments.reporting.plots.sweep_pictures import draw_sweeps
from experiments.results.acceptance import alphas_by_position
from experiments.results.record import STAGES, Record
from experiments.results.records import Group, group_records, is_lossy

Row = tuple[str, Record]  # a label and its record
Panel = tuple[str, list[Row]]  # a group's title and its rows

# Greys for the models and violets for the loop: they differ in lightness, and from the colours of drafters.
_COLOURS = ("#6E6E6E", "#CFCFCF", "#3B2A80", "#7B68C8", "#BFB4EA", "#9E9E9E", "#E3DDF8")
STAGE_COLOURS = dict(zip(STAGES, _COLOURS, strict=True))


def draw_pictures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Save every plot for which the records hold numbers; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures_of(records).items():
        figure.savefig(folder / name, dpi=160, facecolor="white")
        written.append(folder / name)
    return written


def figures_of(records: Sequence[Record]) -> dict[str, Figure]:
    """Every plot for which the records hold numbers, by the name of its file.

    At most speedups.png, alpha_by_position.png, round_time.png and gamma_policies.png, with one panel per group of
    comparable points, and one picture per setting that varies, such as over_gamma.png.
    """
    groups = group_records(records)
    figures = {
        "speedups.png": _draw_speedups(groups),
        "alpha_by_position.png": _draw_alpha_by_position(groups),
        "round_time.png": _draw_round_time(groups),
        "gamma_policies.png": draw_gamma_policies(groups),
        **draw_sweeps(records),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def draw_speedups(records: Sequence[Record]) -> Figure | None:
    """Plot of measured, zero-overhead and predicted speedups; None if no speedup was measured."""
    return _draw_speedups(group_records(records))


def _draw_speedups(groups: Iterable[Group]) -> Figure | None:
    panels = _panels(groups, lambda record: record.metrics.get("speedup/measured") is not None)
    if not panels:
        return None
    figure, axes = _rows_figure(panels, "Speedup over plain decoding: measured and theoretical")
    farthest = 1.0
    for ax, (_, rows) in zip(axes, panels, strict=True):
        ax.axvline(1, color=INK, linewidth=1, linestyle="--", zorder=1)
        for y, (_, record) in enumerate(rows):
            farthest = max(farthest, _draw_speedup(ax, y, record))
        ax.set_xlabel("speedup (plain decoding = 1)")
    axes[0].set_xlim(0, 1.06 * farthest)
    marks = [
        Line2D([], [], color=INK, marker="o", linewidth=2.5, label="measured, min–max"),
        Line2D([], [], color=INK, marker="D", mfc="white", linestyle="", label="zero-overhead speedup"),
        Line2D([], [], color=INK, marker="|", markersize=11, mew=2, linestyle="", label="predicted (Thm 3.8)"),
    ]
    place_legend(figure, marks)
    return figure


def _draw_speedup(ax: Axes, y: float, record: Record) -> float:
    """Draw the row of a point and return its largest value."""
    quantities = ("measured", "zero_overhead", "predicted", "measured_low", "measured_high")
    metrics: dict[str, Any] = {key: record.metrics.get(f"speedup/{key}") for key in quantities}
    known = [value for value in metrics.values() if value is not None]
    measured, colour = metrics["measured"], look_of(_drafter(record)).colour
    ax.plot([min(known), max(known)], [y, y], color=colour, linewidth=1, alpha=0.35, zorder=2)
    if metrics["predicted"] is not None:
        ax.plot(metrics["predicted"], y, "|", color=colour, markersize=13, mew=2, zorder=3)
    if metrics["zero_overhead"] is not None:
        ax.plot(metrics["zero_overhead"], y, "D", color=colour, mfc="white", markersize=7, mew=1.5, zorder=4)
    if metrics["measured_low"] is not None and metrics["measured_high"] is not None:
        ax.plot([metrics["measured_low"], metrics["measured_high"]], [y, y], color=colour, linewidth=2.5, zorder=4)
    ax.plot(measured, y, "o", color=colour, markersize=8, zorder=5)
    _write_beside(ax, y, f"{measured:.2f}")
    return max(known)


def _draw_alpha_by_position(groups: Iterable[Group]) -> Figure | None:
    panels = _panels(groups, lambda record: bool(alphas_by_position(record)))
    if not panels:
        return None
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(WIDTH, 1.0 + 3.2 * down), layout="constrained")
    figure.suptitle("Acceptance rate of tested tokens by position in the draft")
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    deepest = max(len(alphas_by_position(record)) for _, rows in panels for _, record in rows)
    looks = looks_by_label((_drafter(record), label) for _, rows in panels for label, record in rows)
    for ax, (title, rows) in zip(grid, panels, strict=False):
        for index, (label, record) in enumerate(rows):
            aside = 0.3 * ((index + 0.5) / len(rows) - 0.5)  # keeps intervals from overlapping
            _draw_alphas(ax, record, aside, looks[_drafter(record), label])
        ax.set(title=title, xlim=(0.5, deepest + 0.5), ylim=(0, 1), xlabel="position in the draft")
        ax.title.set_fontsize(10)
        ax.set_xticks(range(1, deepest + 1, math.ceil(deepest / 12)))
        clear_frame(ax, "y")
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    grid[0].set_ylabel("accepted ÷ tested, 95% interval")
    handles = [line_of(label, look) for (_, label), look in looks.items()]
    mean = Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 3)), label="α overlap, all positions")
    place_legend(figure, [*handles, mean])
    return figure


def _draw_alphas(ax: Axes, record: Record, aside: float, look: LineLook) -> None:
    colour = look.colour
    positions, alphas, lows, highs = zip(*alphas_by_position(record), strict=True)
    at = [position + aside for position in positions]
    ax.vlines(at, lows, highs, color=colour, linewidth=1.2, alpha=0.6)
    ax.plot(at, alphas, color=colour, linestyle=look.style, marker=look.marker, markersize=5)
    if (overlap := record.metrics.get("alpha/overlap")) is not None:
        ax.axhline(overlap, color=colour, linewidth=1, linestyle=(0, (1, 3)))


def _draw_round_time(groups: Iterable[Group]) -> Figure | None:
    panels = _panels(groups, lambda record: bool(stages_per_round(record)))
    if not panels:
        return None
    figure, axes = _rows_figure(panels, "Time per round, by stage")
    longest = max(sum(stages_per_round(record).values()) for _, rows in panels for _, record in rows)
    plain = max(record.metrics.get("baseline_ms_per_token") or 0 for _, rows in panels for _, record in rows)
    most = 1.05 * max(longest, plain) or 1.0
    for ax, (_, rows) in zip(axes, panels, strict=True):
        for y, (_, record) in enumerate(rows):
            _draw_round(ax, y, record, most)
        ax.set_xlabel("milliseconds per round")
    axes[0].set_xlim(0, most)
    seen = {stage for _, rows in panels for _, record in rows for stage in stages_per_round(record)}
    marks: list[Artist] = [Patch(color=STAGE_COLOURS[stage], label=stage) for stage in STAGE_COLOURS if stage in seen]
    marks.append(
        Line2D([], [], color=INK, marker="|", markersize=14, linestyle="", label="one token of plain decoding")
    )
    place_legend(figure, marks)
    return figure


def _draw_round(ax: Axes, y: float, record: Record, most: float) -> None:
    left, plain = 0.0, record.metrics.get("baseline_ms_per_token")
    if record.point.get("batch_size", 1) > 1:  # a round of a batch serves several rows
        plain = None
    for stage, milliseconds in stages_per_round(record).items():
        ax.barh(y, milliseconds, left=left, height=0.6, color=STAGE_COLOURS[stage], edgecolor="white", linewidth=0.5)
        number = f"{milliseconds:.1f}"
        side = number_side(number, left / most, milliseconds / most, None if plain is None else plain / most)
        if side:
            ink = INK if stage in ("target", "observe", "replay", "learn") else "white"
            at = left + 0.02 * most if side == "left" else left + milliseconds - 0.02 * most
            ax.text(at, y, number, va="center", ha=side, color=ink, fontsize=8)
        left += milliseconds
    tau = record.metrics.get("tau")
    _write_beside(ax, y, f"{left:.1f} ms" if tau is None else f"{left:.1f} ms → {tau:.2f} tokens")
    if plain is not None:
        ax.plot([plain, plain], [y - 0.4, y + 0.4], color=INK, linewidth=1.2)


def number_side(number: str, start: float, width: float, mark: float | None) -> Literal["left", "right"] | None:
    """Side of a bar's piece on which its number touches neither the ends nor a mark; None if there is none.

    Args:
        number: the number.
        start, width: left end and width of the piece, as shares of the axis.
        mark: place of the mark across the bar.
    """
    room = 0.04 + 0.035 * len(number)  # share of the narrowest axis
    if width < room:
        return None
    if mark is None or not start <= mark <= start + room:
        return "left"
    return "right" if mark < start + width - room else None


def stages_per_round(record: Record) -> dict[str, float]:
    """Milliseconds per round of the measured stages, in the order of a round; negative values become 0."""
    stages = record.stages_ms_per_round or {}
    return {stage: max(0.0, stages[stage]) for stage in STAGE_COLOURS if stages.get(stage) is not None}


def _write_beside(ax: Axes, y: float, text: str) -> None:
    """Write the value of a row beside its panel, where no mark is."""
    ax.annotate(
        text, (1, y), (5, 0), xycoords=ax.get_yaxis_transform(), textcoords="offset points", va="center", color=INK,
        fontsize=8, annotation_clip=False,
    )  # fmt: skip


def _panels(groups: Iterable[Group], drawable: Callable[[Record], bool]) -> list[Panel]:
    """Drawable rows by group; groups without any are left out."""
    panels = []
    for group in groups:
        rows = [row for row in zip(group.labels, group.records, strict=True) if drawable(row[1])]
        if rows:
            panels.append((group.title, rows))
    return panels


def _drafter(record: Record) -> str:
    return str(record.point.get("drafter"))


def _rows_figure(panels: Sequence[Panel], title: str) -> tuple[Figure, list[Axes]]:
    """Panels of named rows that share an axis, two per line if the names are short enough."""
    longest_name = max(len(label) for _, rows in panels for label, _ in rows)
    across = 2 if len(panels) > 1 and longest_name <= LONGEST_LABEL else 1
    down = math.ceil(len(panels) / across)
    heights = [max(len(rows) for _, rows in panels[line * across : (line + 1) * across]) for line in range(down)]
    figure = Figure(figsize=(WIDTH, 0.8 + sum(0.85 + 0.36 * height for height in heights)), layout="constrained")
    figure.suptitle(title)
    grid = figure.subplots(down, across, sharex=True, squeeze=False, height_ratios=[height + 0.4 for height in heights])
    axes = list(grid.flat)
    for ax in axes[len(panels) :]:
        ax.set_visible(False)
    for ax, (name, rows) in zip(axes, panels, strict=False):
        ax.set_title(name, fontsize=10)
        ax.set_yticks(range(len(rows)), [f"{label} (≠ lossy)" if is_lossy(record) else label for label, record in rows])
        for tick, (_, record) in zip(ax.get_yticklabels(), rows, strict=True):
            tick.set_color(look_of(_drafter(record)).colour)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(labelbottom=True)
        clear_frame(ax, "x")
    return figure, axes[: len(panels)]
