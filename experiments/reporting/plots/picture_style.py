"""Shared style of plots: colours, line styles, width and frames."""

from collections.abc import Iterable
from typing import Literal

from matplotlib.axes import Axes

# Okabe and Ito's colours without yellow, which is too light on white; then two of Paul Tol's for more drafters.
DRAFTER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
LINE_STYLES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")
INK, FAINT = "#333333", "#DDDDDD"
WIDTH = 10.0  # inches


def colours_by_name(drafters: Iterable[str]) -> dict[str, str]:
    """Colours of drafters by name; they depend on the set of names, not on their order."""
    return {name: DRAFTER_COLOURS[index % len(DRAFTER_COLOURS)] for index, name in enumerate(sorted(set(drafters)))}


def clear_frame(ax: Axes, measured: Literal["x", "y", "both"]) -> None:
    """Remove spines and ticks, and draw a grid along the measured axis."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=measured, color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(length=0)
