"""The paper's tables as scatter plots: our values against the published ones."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.reporting.paper.side_by_side import SideBySide
from experiments.reporting.plots.picture_style import DRAFTER_COLOURS, FAINT, INK, WIDTH, clear_frame, look_of

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
