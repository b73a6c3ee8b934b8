"""Plot of the batch from which drafts do not pay, over the context: a line per GPU or CPU, a panel per target."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from experiments.projection.speedups import MOST_ROWS, Decoding
from experiments.reporting.plots.picture_style import (
    DRAFTER_COLOURS,
    INK,
    LINE_STYLES,
    WIDTH,
    LineStyle,
    clear_frame,
    place_legend,
)

CONTEXTS = [round(2 ** (step / 2)) for step in range(14, 35)]  # 128 to 131,072 tokens


def draw_break_even(pairs: Sequence[tuple[Decoding, Decoding]], path: Path) -> None:
    """Draw decodings that differ in hardware and target only, each with and without overlap."""
    targets = list(dict.fromkeys(each.target.name for each, _ in pairs))
    machines = list(dict.fromkeys(each.roofline.hardware.name for each, _ in pairs))
    figure = Figure(figsize=(WIDTH, 0.8 + 3.6 * len(targets)), layout="constrained")
    figure.suptitle(f"Smallest batch in which no draft pays, {pairs[0][0].acceptance.name}; no line: drafts pay in all")
    grid = figure.subplots(len(targets), 2, squeeze=False, sharex=True, sharey=True)
    for pair in pairs:
        number = machines.index(pair[0].roofline.hardware.name)
        for ax, decoding in zip(grid[targets.index(pair[0].target.name)], reversed(pair), strict=True):
            _draw_lines(ax, decoding, *_look(number))
    for target, axes in zip(targets, grid, strict=True):
        axes[0].set_ylabel("rows in a batch")
        for ax, kind in zip(axes, ("reading, then arithmetic", "reading and arithmetic overlap"), strict=True):
            ax.set_title(f"{target}: {kind}", fontsize=10)
            _set_scales(ax)
    handles = []
    for number, name in enumerate(machines):
        colour, style = _look(number)
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=2, label=name))
    handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=":", label="dotted: largest batch that fits"))
    place_legend(figure, handles)
    figure.savefig(path, dpi=160, facecolor="white")


def _look(number: int) -> tuple[str, LineStyle]:
    """Colour and line style of a GPU or CPU."""
    row, column = divmod(number, len(DRAFTER_COLOURS))
    return DRAFTER_COLOURS[column], LINE_STYLES[row % 3]  # the fourth one is that of the memory limit


def _set_scales(ax: Axes) -> None:
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set(xlim=(CONTEXTS[0], CONTEXTS[-1]), ylim=(1, MOST_ROWS), xlabel="context, tokens per row")
    ax.set_xticks(CONTEXTS[::6], [f"{context:,}" for context in CONTEXTS[::6]])
    ticks = [4**power for power in range(7)]
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    clear_frame(ax, "both")


def _draw_lines(ax: Axes, decoding: Decoding, colour: str, style: LineStyle) -> None:
    """Draw break-even and memory limit; both end where they leave the axes, and where the weights do not fit."""
    limits = [decoding.largest_batch(context) or math.nan for context in CONTEXTS]
    break_even = [
        math.nan if math.isnan(limit) else decoding.break_even_batch(context) or math.nan
        for context, limit in zip(CONTEXTS, limits, strict=True)
    ]
    ax.plot(CONTEXTS, break_even, color=colour, linestyle=style, linewidth=2)
    ax.plot(CONTEXTS, limits, color=colour, linestyle=":", linewidth=0.8)
