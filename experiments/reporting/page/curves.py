"""Line charts of the page: alpha by draft position, and tokens per second by batch size."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.reporting.page.points import Point
from experiments.reporting.page.scale import Scale, Tick
from experiments.reporting.plots.batch_picture import Curve, curves_by_panel, pays_up_to, plain_by_size
from experiments.reporting.plots.picture_style import INK, LINE_STYLES
from experiments.results.acceptance import alphas_by_position

TOP, BOTTOM = 12, 204  # y of the plot area in pixels; page.html sets the panel height to match
DASHES = dict(zip(LINE_STYLES, ("", "6 3", "6 3 1 3", "1.5 3"), strict=True))


@dataclass(frozen=True)
class Dot:
    """A value on a line: x in percent of the width, y in pixels; low and high: y of its interval, if any."""

    x: float
    y: float
    text: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        label: entry in the legend.
        drafter: name of the drafter; "" for plain decoding.
        colour: CSS colour.
        dash: SVG stroke-dasharray.
        dots: values on the line.
        kind: measured, predicted or plain.
        level: y of an extra horizontal line; in alpha charts, alpha over all positions.
        crossing: break-even batch size of speculation.
    """

    label: str
    drafter: str
    colour: str
    dash: str
    dots: list[Dot]
    kind: str = "measured"
    level: float | None = None
    crossing: Dot | None = None

    @property
    def path(self) -> str:
        return " ".join(f"{dot.x:g},{dot.y:g}" for dot in self.dots)


@dataclass(frozen=True)
class Panel:
    """Lines on common axes, and the same numbers as a table, heading first."""

    title: str
    group: str
    description: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    table: list[list[str]]


def alpha_panels(points: Sequence[Point]) -> list[Panel]:
    """Panels of the acceptance rate by draft position, with 95% intervals, one per group."""
    found = {id(point): alphas_by_position(point.record) for point in points}
    shown = [point for point in points if found[id(point)]]
    if not shown:
        return []
    deepest = max(position for alphas in found.values() for position, *_ in alphas)
    down = Scale(0, 1, BOTTOM, TOP)
    groups = list(dict.fromkeys(point.group for point in shown))
    across = Scale(0.5, deepest + 0.5)
    ticks = [Tick(str(position), across.at(position)) for position in range(1, deepest + 1)]
    dashes = _dashes(shown)
    panels = []
    for group in groups:
        members = [point for point in shown if point.group == group]
        lines = []
        for index, point in enumerate(members):
            aside = 0.4 * ((index + 0.5) / len(members) - 0.5)  # keeps intervals from overlapping
            dots = [
                Dot(
                    x=across.at(position + aside),
                    y=down.at(alpha),
                    text=f"{point.label}, position {position}: {alpha:.3f} ({low:.3f} to {high:.3f})",
                    low=down.at(low),
                    high=down.at(high),
                )
                for position, alpha, low, high in found[id(point)]
            ]
            overlap = point.metric("alpha/overlap")
            level = None if overlap is None else down.at(overlap)
            lines.append(
                Line(point.label, point.drafter, point.colour, dashes[point.drafter, point.label], dots, level=level)
            )
        table = [["drafter", *(tick.text for tick in ticks)]]
        for point in members:
            values = [f"{alpha:.3f}" for _, alpha, *_ in found[id(point)]]
            table.append([point.label, *values, *["–"] * (deepest - len(values))])
        description = f"Line chart, {group}: acceptance rate of tested tokens at draft positions 1 to {deepest}"
        panels.append(Panel(group, group, description, ticks, down.ticks(5), lines, table))
    return panels


def batch_panels(points: Sequence[Point]) -> list[Panel]:
    """Panels of tokens per second by batch size, measured and predicted; empty if only one size was measured."""
    by_title = curves_by_panel([point.record for point in points])
    colours = {point.drafter: point.colour for point in points}
    return [_batch_panel(title, curves, colours) for title, curves in by_title.items()]


def _batch_panel(title: str, curves: Sequence[Curve], colours: dict[str, str]) -> Panel:
    middle = plain_by_size(curves)
    sizes = list(middle)
    rates = list(middle.values())
    for curve in curves:
        rates += [middle[size] * factor for size, factor in zip(curve.sizes, curve.measured, strict=True)]
        rates += [middle[size] * factor for size, factor in zip(curve.sizes, curve.predicted, strict=True)]
    across = Scale(sizes[0] / 1.2, sizes[-1] * 1.2, in_powers=True)
    down = Scale(min(rates) / 1.15, max(rates) * 1.15, BOTTOM, TOP, in_powers=True)

    def line(label: str, drafter: str, kind: str, of_sizes: Sequence[int], speeds: Sequence[float]) -> Line:
        dots = [
            Dot(across.at(size), down.at(speed), f"{label}, batch size {size}: {speed:.0f} tokens per second")
            for size, speed in zip(of_sizes, speeds, strict=True)
        ]
        return Line(label, drafter, colours.get(drafter, INK), "4 3" if kind == "predicted" else "", dots, kind)

    lines = [line("plain decoding", "", "plain", sizes, [middle[size] for size in sizes])]
    table = [["tokens per second", *(str(size) for size in sizes)]]
    table.append(["plain decoding", *(f"{middle[size]:.0f}" for size in sizes)])
    for curve in curves:
        base = [middle[size] for size in curve.sizes]
        measured = [rate * factor for rate, factor in zip(base, curve.measured, strict=True)]
        predicted = [rate * factor for rate, factor in zip(base, curve.predicted, strict=True)]
        lines.append(line(f"{curve.label}, predicted", curve.drafter, "predicted", curve.sizes, predicted))
        drawn = line(curve.label, curve.drafter, "measured", curve.sizes, measured)
        crossing = None
        if end := pays_up_to(curve.sizes, curve.measured):
            speed = 2 ** float(np.interp(np.log2(end), np.log2(curve.sizes), np.log2(base)))
            crossing = Dot(across.at(end), down.at(speed), f"{curve.label} breaks even at batch size {end:.0f}")
        lines.append(replace(drawn, crossing=crossing))
        known = dict(zip(curve.sizes, measured, strict=True))
        table.append([curve.label, *(f"{known[size]:.0f}" if size in known else "–" for size in sizes)])
    description = f"Line chart, {title}: tokens per second at batch sizes {sizes[0]} to {sizes[-1]}"
    ticks = [Tick(str(size), across.at(size)) for size in sizes]
    return Panel(title, "", description, ticks, down.ticks(6), lines, table)


def _dashes(points: Sequence[Point]) -> dict[tuple[str, str], str]:
    """Dash pattern by drafter and label, equal in all panels; points of one drafter share a colour."""
    labels: dict[str, list[str]] = {}
    for point in points:
        known = labels.setdefault(point.drafter, [])
        known += [point.label] if point.label not in known else []
    return {
        (drafter, label): DASHES[LINE_STYLES[index % len(LINE_STYLES)]]
        for drafter, known in labels.items()
        for index, label in enumerate(known)
    }
