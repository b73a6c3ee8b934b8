"""The paper's figures on its axes, with our measurements: curves over α, a trace of calls, a coloured sample."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.reporting.paper.matching import Key, by_key
from experiments.reporting.plots.picture_style import (
    DRAFTER_COLOURS,
    FAINT,
    GREY,
    INK,
    WIDTH,
    clear_frame,
    place_legend,
)
from experiments.reporting.token_colours import LIGHT
from experiments.results.record import Record
from framework.metrics import theory
from framework.metrics.producer import MEANINGS

ALPHAS = np.linspace(0, 1, 101)
GAMMAS = (1, 3, 5, 7, 10)
COSTS = (0.01, 0.02, 0.05, 0.1, 0.2)
MOST_GAMMA = 30  # larger values are cut off
MARKERS = "oXsD^v<>pPh*"
TRACED_GAMMAS = (7, 3)
STAGE_COLOURS = {
    "prefill": "#F0D060", "begin": "#E69F00", "draft": "#56B4E9", "target": "#882255", "step": "#882255",
    "round": "#CC79A7", "verify_and_commit": "#882255",
}  # fmt: skip
STAGE_NAMES = {
    "prefill": "prompt read by the target", "begin": "prompt read by the drafter", "draft": "draft steps",
    "target": "target pass", "step": "compiled step", "round": "compiled round",
    "verify_and_commit": "compiled target pass",
}  # fmt: skip
SAMPLE_ROUNDS = 20
TAU_OF_SAMPLE = 38 / 9  # tokens in the target passes of the paper's sample
REJECTED = "#b3261e"
FONT_SIZE = 10  # points
LETTER = 0.602 * FONT_SIZE / 72  # inches: width of a letter of matplotlib's monospaced font


def figures_of(records: Sequence[Record]) -> dict[str, Figure]:
    """Every figure for which the records hold data, by its name.

    Args:
        records: points of one sweep over γ. The theory's curves need none.
    """
    figures = {
        "tokens": draw_tokens(records),
        "optimal_gamma": draw_optimal_gamma(records),
        "speed_and_operations": draw_speed_and_operations(records),
        "trace": draw_trace(records),
        "sample": draw_sample(records),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def draw_tokens(records: Sequence[Record]) -> Figure:
    """Expected tokens per target pass against α, for several γ; marks: counted."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    ax = figure.subplots()
    _draw_curves(ax, theory.expected_tokens)
    ax.plot(ALPHAS[:-1], 1 / (1 - ALPHAS[:-1]), color=GREY, linestyle="--", label="γ = ∞")
    marks = _mark(ax, records, lambda record: record.metrics.get("tau"))
    ax.set(xlabel="α", ylabel="tokens per target pass", ylim=(0.8, 11.2), title="Eq. 1 (lines), counted (marks)")
    place_legend(figure, [*ax.get_lines()[: len(GAMMAS) + 1], *marks])
    return figure


def draw_optimal_gamma(records: Sequence[Record]) -> Figure:
    """Optimal γ by Theorem 3.8 against α, for several c; marks: the fastest measured γ."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    ax = figure.subplots()
    lines = []
    for c, colour in zip(COSTS, DRAFTER_COLOURS, strict=False):
        best = [theory.optimal_gamma(float(alpha), c, MOST_GAMMA + 1) for alpha in ALPHAS[:-1]]
        lines += ax.plot(ALPHAS[:-1], best, color=colour, drawstyle="steps-mid", label=f"c = {c:g}")
    marks = []
    for (key, group), marker in zip(by_key(records).items(), MARKERS, strict=False):
        fastest = max(group, key=lambda record: record.metrics["speedup/measured"])
        label = f"{_name(key)}: fastest, c = {fastest.metrics['c']:.2f}"
        if (alpha := alpha_of(fastest)) is not None:
            gamma = fastest.point["gamma"]
            marks += ax.plot(alpha, gamma, marker, color=INK, label=label, clip_on=False, zorder=3)
    ax.set(xlabel="α", ylabel="γ", xlim=(0, 1), ylim=(-0.5, MOST_GAMMA), title="Optimal γ by Theorem 3.8")
    clear_frame(ax, "both")
    place_legend(figure, [*lines, *marks])
    return figure


def draw_speed_and_operations(records: Sequence[Record]) -> Figure:
    """Speedup and arithmetic operations against α for several γ, by theory with free drafting; marks: measured."""
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    speed, operations = figure.subplots(1, 2)
    _draw_curves(speed, lambda alpha, gamma: theory.speedup(alpha, gamma, 0))
    _draw_curves(operations, lambda alpha, gamma: theory.operations_factor(alpha, gamma, 0))
    marks = _mark(speed, records, lambda record: record.metrics.get("speedup/measured"))
    _mark(operations, records, lambda record: record.metrics.get("operations/counted"))
    speed.set(xlabel="α", ylabel="speedup", ylim=(0, 11.2), title="Theorem 3.8 at c = 0, measured (marks)")
    title = "Theorem 3.11 at ĉ = 0, counted (marks)"
    operations.set(xlabel="α", ylabel="operations ÷ plain decoding's", ylim=(0, 11.2), title=title)
    place_legend(figure, [*speed.get_lines()[: len(GAMMAS)], *marks])
    return figure


def _draw_curves(ax: Axes, of: Callable[[float, int], float]) -> None:
    """Curves over α, one per γ."""
    for gamma, colour in zip(GAMMAS, DRAFTER_COLOURS, strict=False):
        ax.plot(ALPHAS, [of(float(alpha), gamma) for alpha in ALPHAS], color=colour, label=f"γ = {gamma}")
    ax.set_xlim(0, 1)
    clear_frame(ax, "both")


def _mark(ax: Axes, records: Sequence[Record], value: Callable[[Record], float | None]) -> list[Line2D]:
    """Mark points of the γ that have a curve, in its colour; return the legend's markers, one per setting."""
    colours, handles = dict(zip(GAMMAS, DRAFTER_COLOURS, strict=False)), []
    for (key, group), marker in zip(by_key(records).items(), MARKERS, strict=False):
        for record in group:
            colour, alpha, y = colours.get(record.point["gamma"]), alpha_of(record), value(record)
            if colour is not None and alpha is not None and y is not None:
                ax.plot(alpha, y, marker, color=colour, markeredgecolor="white", markersize=8, clip_on=False, zorder=3)
        handles.append(Line2D([], [], color=INK, marker=marker, linestyle="", label=_name(key)))
    return handles


def alpha_of(record: Record) -> float | None:
    """α over all positions of the target's text, as in the paper, if measured; else over tested tokens."""
    return record.metrics.get("alpha/teacher_forced", record.metrics.get("alpha/overlap"))


def _name(key: Key) -> str:
    return f"{key.drafter}, {key.task}, T={key.temperature:g}"


def draw_trace(records: Sequence[Record]) -> Figure | None:
    """Calls of drafter and target over time for the first prompt: two γ, and plain decoding; None without a trace."""
    points = _traced(records)
    if not points:
        return None
    rows = [(f"γ = {record.point['gamma']}", record.trace["own"], record.point["gamma"]) for record in points]
    rows.append(("plain decoding", points[0].trace["baseline"], 1))
    figure = Figure(figsize=(WIDTH, 1.3 + 0.62 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for y, (_, trace, gamma) in enumerate(rows):
        for stage, begin, end in trace:
            for left, width in _pieces(stage, begin, end, gamma):
                edge = "white" if stage in STAGE_COLOURS else "none"
                ax.barh(y, width, left=left, height=0.62, color=STAGE_COLOURS.get(stage, FAINT), edgecolor=edge, lw=0.4)
    (key,) = by_key(points[:1])
    ax.set(xlabel="milliseconds", ylim=(len(rows) - 0.4, -0.6), title=f"First prompt, {_name(key)}")
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
    clear_frame(ax, "x")
    seen = {stage for _, trace, _ in rows for stage, *_ in trace}
    patches = [
        Patch(color=colour, label=STAGE_NAMES[stage]) for stage, colour in STAGE_COLOURS.items() if stage in seen
    ]
    place_legend(figure, [*patches, Patch(color=FAINT, label="acceptance, commit, host")])
    return figure


def _traced(records: Sequence[Record]) -> list[Record]:
    """Points with a trace of the setting of the largest τ, with the paper's two γ or the nearest ones."""
    settings = by_key(record for record in records if record.trace.get("own") and record.trace.get("baseline"))
    if not settings:
        return []
    group = max(settings.values(), key=lambda group: max(record.metrics["tau"] for record in group))
    nearest = [min(group, key=lambda record: abs(record.point["gamma"] - gamma)) for gamma in TRACED_GAMMAS]
    return nearest[:1] if nearest[0] is nearest[1] else nearest


def _pieces(stage: str, begin: float, end: float, gamma: int) -> list[tuple[float, float]]:
    """Left ends and widths of a block; that of drafting is divided evenly into γ steps, which are not timed singly."""
    number = gamma if stage == "draft" else 1
    width = (end - begin) / number
    return [(begin + place * width, width) for place in range(number)]


def draw_sample(records: Sequence[Record]) -> Figure | None:
    """A decoded text, one round per line, its tokens coloured by their producers; None where none is recorded."""
    points = [record for record in records if record.prompts and record.prompts[0].get("tokens")]
    if not points:
        return None
    record = min(points, key=lambda record: abs(record.metrics["tau"] - TAU_OF_SAMPLE))
    tokens = max((row["tokens"] for row in record.prompts if row.get("tokens")), key=len)
    lines = list(islice(_rounds(tokens), SAMPLE_ROUNDS))
    height = 0.85 + 0.24 * len(lines)
    figure = Figure(figsize=(WIDTH, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH), ylim=(height, 0))
    ax.axis("off")
    shown = sum(len(line) for line in lines)
    (key,) = by_key([record])
    ax.text(0.2, 0.25, f"{shown} tokens in {len(lines)} target passes: {_name(key)}, γ = {record.point['gamma']}",
            va="center", color=INK)  # fmt: skip
    for number, line in enumerate(lines):
        _write_round(ax, 0.58 + 0.24 * number, line)
    patches = [
        Patch(color=LIGHT[producer].background, label=f"{producer}: {why}") for producer, why in MEANINGS.items()
    ]
    figure.legend(handles=[*patches, Patch(color=REJECTED, label="rejected")], loc="lower center", ncols=2,
                  frameon=False, fontsize=8, bbox_to_anchor=(0.5, 0), bbox_transform=figure.transFigure)  # fmt: skip
    figure.set_figheight(height + 0.6)
    ax.set_position((0, 0.6 / (height + 0.6), 1, height / (height + 0.6)))
    return figure


def _rounds(tokens: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Tokens of each target pass: accepted ones, and the target's own, which ends it."""
    line: list[dict[str, Any]] = []
    for token in tokens:
        line.append(token)
        if token["producer"] != "accepted":
            yield line
            line = []
    if line:
        yield line


def _write_round(ax: Axes, y: float, line: Sequence[dict[str, Any]]) -> None:
    """Write a round's tokens side by side; a rejected one, struck through, precedes its replacement."""
    x = 0.2
    for token in line:
        if drafted := token.get("instead_of"):
            text = _visible(drafted["text"])
            ax.text(x, y, text, va="center", family="monospace", fontsize=FONT_SIZE, color=REJECTED)
            ax.plot([x, x + LETTER * len(text)], [y, y], color=REJECTED, linewidth=1)
            x += LETTER * (len(text) + 1)
        text = _visible(token["text"])
        box = {"facecolor": LIGHT[token["producer"]].background, "edgecolor": "none", "pad": 1.5}
        ax.text(x, y, text, va="center", family="monospace", fontsize=FONT_SIZE, color=INK, bbox=box)
        x += LETTER * (len(text) + 1)


def _visible(text: str) -> str:
    """A token's text with its spaces and line ends as signs, as matplotlib's plain text."""
    return text.replace(" ", "␣").replace("\n", "⏎").replace("$", r"\$") or "·"
