"""The paper's figures with our measurements added, and its tables as scatter plots."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.reporting.paper.side_by_side import SideBySide
from experiments.reporting.paper.tables import key_of
from experiments.reporting.plots.picture_style import DRAFTER_COLOURS, FAINT, INK, WIDTH, clear_frame, look_of
from experiments.results.record import Record
from framework.metrics import theory

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
GAMMAS = range(11)
COSTS = np.geomspace(0.01, 1, 60)
MOST_GAMMA = 30  # larger values are never optimal for these alphas and costs
MARKERS = "oXsD^"


def draw_side_by_side(table: SideBySide) -> Figure:
    """Scatter plot of our values against the paper's, one panel per quantity, with the line of equality."""
    quantities = list(
        dict.fromkeys(key for row in table.rows for key, pair in row.compared.items() if None not in pair)
    )
    panels = max(1, len(quantities))
    across = min(3, panels)
    down = -(-panels // across)
    figure = Figure(figsize=(WIDTH, 0.8 + 3.2 * down), layout="constrained")
    figure.suptitle(table.title, fontsize=11)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    colour_by, mark_by = _distinguished_by(table)
    coloured = dict.fromkeys(row.labels.get(colour_by, "") for row in table.rows)
    colours = dict(zip(coloured, DRAFTER_COLOURS, strict=False))
    if colour_by == "drafter":
        colours = {name: look_of(name).colour for name in coloured}
    marks = dict(zip(dict.fromkeys(row.labels.get(mark_by, "") for row in table.rows), MARKERS, strict=False))
    for ax, quantity in zip(grid, quantities, strict=False):
        pairs = [(row, *row.compared[quantity]) for row in table.rows if quantity in row.compared]
        known = [(row, paper, ours) for row, paper, ours in pairs if paper is not None and ours is not None]
        top = 1.08 * max(max(paper, ours) for _, paper, ours in known)
        ax.plot([0, top], [0, top], color=FAINT, linewidth=1)
        for row, paper, ours in known:
            colour = colours.get(row.labels.get(colour_by, ""), INK)
            ax.plot(paper, ours, color=colour, marker=marks.get(row.labels.get(mark_by, ""), "o"), markersize=6)
        ax.set(xlabel=f"{quantity}, paper", ylabel="ours", xlim=(0, top), ylim=(0, top))
        clear_frame(ax, "both")
    for ax in grid[len(quantities) :]:
        ax.set_visible(False)
    handles = [Line2D([], [], color=colour, marker="o", linestyle="", label=name) for name, colour in colours.items()]
    if mark_by:
        handles += [Line2D([], [], color=INK, marker=mark, linestyle="", label=name) for name, mark in marks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def _distinguished_by(table: SideBySide) -> tuple[str, str]:
    """Labels shown by colour and by marker; "" as the second if colour suffices."""
    labels = table.rows[0].labels
    if "drafter" not in labels:
        return next(iter(labels)), ""
    return "drafter", "task" if "task" in labels else "lenience"


def draw_figures(records: Sequence[Record]) -> Figure:
    """Plot expected tokens against γ and the optimal γ against c, each with our measurements."""
    figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
    tokens, gammas = figure.subplots(1, 2)
    for alpha, colour in zip(ALPHAS, DRAFTER_COLOURS, strict=False):
        label = f"α = {alpha:g}"
        tokens.plot(GAMMAS, [theory.expected_tokens(alpha, gamma) for gamma in GAMMAS], color=colour, label=label)
        best = [theory.optimal_gamma(alpha, float(c), MOST_GAMMA) for c in COSTS]
        gammas.plot(COSTS, best, color=colour, label=label, drawstyle="steps-mid")
    _mark_measured(tokens, gammas, records)
    tokens.set(xlabel="γ", ylabel="tokens per target pass", title="Eq. 1 (lines) and counted (marks)")
    gammas.set(xlabel="c: draft step ÷ target step", ylabel="γ", title="Optimal γ by Theorem 3.8")
    gammas.set_xscale("log")
    for ax in (tokens, gammas):
        clear_frame(ax, "both")
        ax.legend(frameon=False, fontsize=8)
    return figure


def _mark_measured(tokens: Axes, gammas: Axes, records: Sequence[Record]) -> None:
    """Mark the counted τ of every drafter by γ, and the optimal γ for its α and c."""
    by_drafter: dict[str, list[Record]] = {}
    for record in records:
        key = key_of(record)
        by_drafter.setdefault(f"{key.drafter}, T={key.temperature:g}", []).append(record)
    for (name, group), mark in zip(by_drafter.items(), MARKERS, strict=False):
        group = sorted(group, key=lambda record: record.point["gamma"])
        alpha = float(np.mean([record.metrics["alpha/overlap"] for record in group]))
        label = f"{name}: α = {alpha:.2f}"
        points = [(record.point["gamma"], record.metrics["tau"]) for record in group]
        tokens.plot(*zip(*points, strict=True), color=INK, marker=mark, linestyle="", label=label)
        c = float(np.median([record.metrics["c"] for record in group]))
        best = theory.optimal_gamma(min(alpha, 1.0), c, MOST_GAMMA)
        gammas.plot(c, best, color=INK, marker=mark, linestyle="", label=f"{label}, c = {c:.2f}")
