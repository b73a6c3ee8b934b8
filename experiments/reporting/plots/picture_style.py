"""Shared style of plots and page: looks of drafters, line styles, width, frames and legends."""

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
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
LIGHTEST, DARKEST = 0.6, 0.6  # shares of white and black in the shades of a colour
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


@dataclass(frozen=True)
class LineLook(Look):
    """Look of one line of a drafter."""

    style: LineStyle


def looks_by_label(labels: Iterable[tuple[str, str]]) -> dict[tuple[str, str], LineLook]:
    """Looks of lines by drafter and label.

    Lines of one drafter differ in style, and every four of them in shade.
    """
    looks: dict[tuple[str, str], LineLook] = {}
    ordered = sorted(set(labels), key=lambda key: (key[0], counted(key[1])))
    for drafter, keys in groupby(ordered, key=itemgetter(0)):
        lines, look = list(keys), look_of(drafter)
        rows = [lines[first : first + len(LINE_STYLES)] for first in range(0, len(lines), len(LINE_STYLES))]
        for shade, row in zip(_shades(look.colour, len(rows)), rows, strict=True):
            looks |= {key: LineLook(shade, look.shape, style) for key, style in zip(row, LINE_STYLES, strict=False)}
    return looks


def _shades(colour: str, number: int) -> list[str]:
    """Shades of a colour, from light to dark; the colour itself if one is needed."""
    if number == 1:
        return [colour]
    own, places = np.array(to_rgb(colour)), np.linspace(-LIGHTEST, DARKEST, number)
    return [to_hex(own * (1 - place) if place > 0 else own - (1 - own) * place) for place in places]


def line_of(label: str, look: LineLook) -> Line2D:
    """The legend entry of a line."""
    return Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.style, markersize=5, label=label)


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
