"""Plots of measured points: speedups, acceptance by position, time per round, batch sizes and gamma policies."""

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from experiments.reporting.plots.batch_picture import draw_batches
from experiments.reporting.plots.gamma_picture import draw_gamma_policies
from experiments.reporting.plots.picture_style import INK, LINE_STYLES, WIDTH, clear_frame, colours_by_name
from experiments.results.acceptance import alphas_by_position
from experiments.results.record import Record
from experiments.results.records import Group, group_records, is_lossy

Row = tuple[str, Record]  # a label and its record
Panel = tuple[str, list[Row]]  # a group's title and its rows

# Greys for the models and violets for the loop: they differ in lightness, and from the colours of drafters.
STAGE_COLOURS = {
    "draft": "#6E6E6E",
    "target": "#CFCFCF",
    "verify": "#3B2A80",
    "commit": "#7B68C8",
    "observe": "#BFB4EA",
    "replay": "#9E9E9E",
    "learn": "#E3DDF8",
}


def draw_pictures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Save every plot for which the records hold numbers, with one panel per group of comparable points.

    Returns:
        the files written: at most speedups.png, alpha_by_position.png, round_time.png, batch_sizes.png and
        gamma_policies.png.
    """
    groups = group_records(records)
    colours = colours_by_name(_drafter(record) for record in records)
    figures = {
        "speedups.png": _draw_speedups(groups, colours),
        "alpha_by_position.png": _draw_alpha_by_position(groups, colours),
        "round_time.png": _draw_round_time(groups, colours),
        "batch_sizes.png": draw_batches(records, colours),
        "gamma_policies.png": draw_gamma_policies(groups, colours),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=160, facecolor="white")
            written.append(folder / name)
    return written


def _draw_speedups(groups: Iterable[Group], colours: dict[str, str]) -> Figure | None:
    panels = _panels(groups, lambda record: record.metrics.get("speedup/measured") is not None)
    if not panels:
        return None
    figure, axes = _rows_figure(panels, "Speedup over plain decoding: measured and theoretical", colours)
    farthest = 1.0
    for ax, (_, rows) in zip(axes, panels, strict=True):
        ax.axvline(1, color=INK, linewidth=1, linestyle="--", zorder=1)
        for y, (_, record) in enumerate(rows):
            farthest = max(farthest, _draw_speedup(ax, y, record, colours[_drafter(record)]))
        ax.set_xlabel("speedup (plain decoding = 1)")
    axes[0].set_xlim(0, 1.06 * farthest)
    marks = [
        Line2D([], [], color=INK, marker="o", linewidth=2.5, label="measured, min–max"),
        Line2D(
            [], [], color=INK, marker="D", mfc="white", linestyle="", label="zero-overhead speedup: no loop overhead"
        ),
        Line2D([], [], color=INK, marker="|", markersize=11, mew=2, linestyle="", label="predicted (Thm 3.8)"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_speedup(ax: Axes, y: float, record: Record, colour: str) -> float:
    """Draw the row of a point and return its largest value."""
    quantities = ("measured", "zero_overhead", "predicted", "measured_low", "measured_high")
    metrics: dict[str, Any] = {key: record.metrics.get(f"speedup/{key}") for key in quantities}
    known = [value for value in metrics.values() if value is not None]
    measured = metrics["measured"]
    ax.plot([min(known), max(known)], [y, y], color=colour, linewidth=1, alpha=0.35, zorder=2)
    if metrics["predicted"] is not None:
        ax.plot(metrics["predicted"], y, "|", color=colour, markersize=13, mew=2, zorder=3)
    if metrics["zero_overhead"] is not None:
        ax.plot(metrics["zero_overhead"], y, "D", color=colour, mfc="white", markersize=7, mew=1.5, zorder=4)
    if metrics["measured_low"] is not None and metrics["measured_high"] is not None:
        ax.plot([metrics["measured_low"], metrics["measured_high"]], [y, y], color=colour, linewidth=2.5, zorder=4)
    ax.plot(measured, y, "o", color=colour, markersize=8, zorder=5)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    ax.annotate(
        f"{measured:.2f}", (measured, y), (0, 7), textcoords="offset points", ha="center",
        color=INK, fontsize=8, bbox=paper, zorder=3,
    )  # fmt: skip
    return max(known)


def _draw_alpha_by_position(groups: Iterable[Group], colours: dict[str, str]) -> Figure | None:
    panels = _panels(groups, lambda record: bool(alphas_by_position(record)))
    if not panels:
        return None
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    figure = Figure(figsize=(WIDTH, 1.0 + 3.2 * down), layout="constrained")
    figure.suptitle("Acceptance rate of tested tokens by position in the draft")
    grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    marks: dict[str, Line2D] = {}
    for ax, (title, rows) in zip(grid, panels, strict=False):
        for index, (label, record) in enumerate(rows):
            if label not in marks:
                marks[label] = Line2D([], [], color=colours[_drafter(record)], marker="o", label=label)
                drawn = sum(mark.get_color() == marks[label].get_color() for mark in marks.values())
                marks[label].set_linestyle(LINE_STYLES[(drawn - 1) % len(LINE_STYLES)])
            aside = 0.3 * ((index + 0.5) / len(rows) - 0.5)  # keeps intervals from overlapping
            _draw_alphas(ax, record, aside, marks[label])
        ax.set(title=title, ylim=(0, 1), xlabel="position in the draft")
        ax.title.set_fontsize(10)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        clear_frame(ax, "y")
    for ax in grid[len(panels) :]:
        ax.set_visible(False)
    grid[0].set_ylabel("accepted ÷ tested, 95% interval")
    mean = Line2D([], [], color=INK, linewidth=1, linestyle=(0, (1, 3)), label="α overlap, all positions")
    figure.legend(
        handles=[*marks.values(), mean],
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=3.5,
    )
    return figure


def _draw_alphas(ax: Axes, record: Record, aside: float, mark: Line2D) -> None:
    colour = mark.get_color()
    positions, alphas, lows, highs = zip(*alphas_by_position(record), strict=True)
    at = [position + aside for position in positions]
    ax.vlines(at, lows, highs, color=colour, linewidth=1.2, alpha=0.6)
    ax.plot(at, alphas, color=colour, linestyle=mark.get_linestyle(), marker="o", markersize=5)
    if (overlap := record.metrics.get("alpha/overlap")) is not None:
        ax.axhline(overlap, color=colour, linewidth=1, linestyle=(0, (1, 3)))


def _draw_round_time(groups: Iterable[Group], colours: dict[str, str]) -> Figure | None:
    panels = _panels(groups, lambda record: bool(stages_per_round(record)))
    if not panels:
        return None
    figure, axes = _rows_figure(panels, "Time per round, by stage", colours)
    longest = max(sum(stages_per_round(record).values()) for _, rows in panels for _, record in rows)
    for ax, (_, rows) in zip(axes, panels, strict=True):
        for y, (_, record) in enumerate(rows):
            _draw_round(ax, y, record, longest)
        ax.set_xlabel("milliseconds per round")
    plain = max(record.metrics.get("baseline_ms_per_token") or 0 for _, rows in panels for _, record in rows)
    axes[0].set_xlim(0, max(1.6 * longest, 1.05 * plain))
    seen = {stage for _, rows in panels for _, record in rows for stage in stages_per_round(record)}
    marks: list[Artist] = [Patch(color=STAGE_COLOURS[stage], label=stage) for stage in STAGE_COLOURS if stage in seen]
    marks.append(
        Line2D([], [], color=INK, marker="|", markersize=14, linestyle="", label="one token of plain decoding")
    )
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), frameon=False, fontsize=9)
    return figure


def _draw_round(ax: Axes, y: float, record: Record, longest: float) -> None:
    left, plain = 0.0, record.metrics.get("baseline_ms_per_token")
    if record.point.get("batch_size", 1) > 1:  # a round of a batch serves several rows
        plain = None
    for stage, milliseconds in stages_per_round(record).items():
        ax.barh(y, milliseconds, left=left, height=0.6, color=STAGE_COLOURS[stage], edgecolor="white", linewidth=0.5)
        if milliseconds > 0.12 * longest:
            ink = INK if stage in ("target", "observe", "replay", "learn") else "white"
            crossed = plain is not None and left <= plain < left + milliseconds / 2  # plain's mark would cover the text
            at, side = (left + milliseconds - 0.02 * longest, "right") if crossed else (left + 0.02 * longest, "left")
            ax.text(at, y, f"{milliseconds:.1f}", va="center", ha=side, color=ink, fontsize=8)
        left += milliseconds
    tau = record.metrics.get("tau")
    shown = f"{left:.1f} ms" if tau is None else f"{left:.1f} ms → {tau:.2f} tokens"
    ax.annotate(shown, (left, y), (5, 0), textcoords="offset points", va="center", color=INK, fontsize=8)
    if plain is not None:
        ax.plot([plain, plain], [y - 0.4, y + 0.4], color=INK, linewidth=1.2)


def stages_per_round(record: Record) -> dict[str, float]:
    """Milliseconds per round of the measured stages, in the order of a round; negative values become 0."""
    stages = record.stages_ms_per_round or {}
    return {stage: max(0.0, stages[stage]) for stage in STAGE_COLOURS if stages.get(stage) is not None}


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


def _rows_figure(panels: Sequence[Panel], title: str, colours: dict[str, str]) -> tuple[Figure, list[Axes]]:
    """Panels of named rows that share an axis, two per line if the names are short enough."""
    longest_name = max(len(label) for _, rows in panels for label, _ in rows)
    across = 2 if len(panels) > 1 and longest_name <= 26 else 1
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
            tick.set_color(colours[_drafter(record)])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.tick_params(labelbottom=True)
        clear_frame(ax, "x")
    return figure, axes[: len(panels)]
