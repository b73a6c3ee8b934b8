"""Shared style of plots and page: looks of drafters, line styles, width, frames and legends."""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.results.records import counted

# Okabe and Ito's colours without yellow, which is too light on white; then two of Paul Tol's for more drafters.
DRAFTER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#999933")
MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D", "wedge": "v", "plus": "P"}
# The first eight have colours of their own, the next eight the same colours and another marker. A name that is not
# listed has the look of its checksum.
DRAFTERS = (
    "small_transformer", "ngram", "prompt_lookup", "medusa", "layer_skip", "uniform_random", "eagle3", "corpus_unigram",
    "dart", "suffix_lookup", "input_copy", "hierarchical", "remote", "other_tokenizer", "eagle_tree",
    "transformer_tree", "online_medusa", "online_small_transformer", "eagle", "online_bandit", "string_match",
)  # fmt: skip
LineStyle = Literal["-", "--", "-.", ":"]
LINE_STYLES: tuple[LineStyle, ...] = ("-", "--", "-.", ":")
INK, GREY, FAINT = "#333333", "#999999", "#DDDDDD"
WIDTH = 10.0  # inches
LEGEND_SIZE = 9  # points
LONGEST_LABEL = 26  # characters; with a longer label, panels are not side by side


@dataclass(frozen=True)
class Look:
    """Colour and marker of a drafter, equal on every page and picture."""

    colour: str
    shape: str

    @property
    def marker(self) -> str:
        """The shape's name in matplotlib."""
        return MARKERS[self.shape]


def look_of(drafter: str) -> Look:
    """The look of a drafter, which depends on its name only."""
    if drafter in DRAFTERS:
        number = DRAFTERS.index(drafter)
    else:
        free = len(DRAFTER_COLOURS) * len(MARKERS) - len(DRAFTERS)
        number = len(DRAFTERS) + zlib.crc32(drafter.encode(errors="replace")) % free
    row, column = divmod(number, len(DRAFTER_COLOURS))
    return Look(DRAFTER_COLOURS[column], list(MARKERS)[row])


def styles_by_label(labels: Iterable[tuple[str, str]]) -> dict[tuple[str, str], LineStyle]:
    """Line styles by drafter and label: lines of one drafter share its colour and differ in style."""
    styles: dict[tuple[str, str], LineStyle] = {}
    for drafter, label in sorted(set(labels), key=lambda key: (key[0], counted(key[1]))):
        number = sum(known == drafter for known, _ in styles)
        styles[drafter, label] = LINE_STYLES[number % len(LINE_STYLES)]
    return styles


def line_of(drafter: str, label: str, style: LineStyle) -> Line2D:
    """The legend entry of a drafter's line."""
    look = look_of(drafter)
    return Line2D([], [], color=look.colour, marker=look.marker, linestyle=style, markersize=5, label=label)


def clear_frame(ax: Axes, measured: Literal["x", "y", "both"]) -> None:
    """Remove spines and ticks, and draw a grid along the measured axis."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis=measured, color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(length=0)


def place_legend(figure: Figure, handles: Sequence[Artist]) -> None:
    """Put a legend below all panels, in as many columns as fit, and make the figure higher."""
    lengths = [len(str(handle.get_label())) for handle in handles]
    room = WIDTH / LEGEND_SIZE * 72  # in letters as wide as high

    def width(across: int) -> float:
        columns = np.array_split(lengths, across)  # as matplotlib does
        return sum(0.62 * max(column) + 5.5 for column in columns)  # mean width of a letter; line and gap

    across = next((number for number in range(len(handles), 1, -1) if width(number) <= room), 1)
    lines = math.ceil(len(handles) / across)
    figure.set_figheight(figure.get_figheight() + 0.02 * LEGEND_SIZE * (lines - 1))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=across, frameon=False, fontsize=LEGEND_SIZE, handlelength=3
    )
