"""Charts with one row per point: measured and theoretical speedups, and time per stage of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.reporting.page.points import Point
from experiments.reporting.plots.picture_style import LONGEST_LABEL
from experiments.reporting.plots.pictures import STAGE_COLOURS, number_side, stages_per_round
from experiments.reporting.scale import Scale, Tick
from experiments.reporting.tables.comparison_table import efficiency


@dataclass(frozen=True)
class Mark:
    """A marked value in a row: its kind, its text, and its x in percent of the width."""

    kind: str
    text: str
    at: float


@dataclass(frozen=True)
class Piece:
    """A segment of a row, in percent of the width, with a text at its start or end."""

    kind: str
    start: float
    width: float
    text: str = ""
    colour: str = ""
    text_at_end: bool = False


@dataclass(frozen=True)
class Row:
    """Chart row of a point; `description` is its text alternative."""

    point: Point
    description: str
    value: str
    beside: str
    pieces: list[Piece]
    marks: list[Mark]


@dataclass(frozen=True)
class Panel:
    """Rows of comparable points on one scale."""

    title: str
    rows: list[Row]
    ticks: list[Tick]
    one: float | None = None  # x of a speedup of 1

    @property
    def has_long_labels(self) -> bool:
        """Whether a label is too long for two panels side by side."""
        return max(len(row.point.label) for row in self.rows) > LONGEST_LABEL


def speedup_panels(points: Sequence[Point]) -> list[Panel]:
    """Panels of measured (with min–max), zero-overhead and predicted speedup, on one scale."""
    shown = [point for point in points if point.metric("speedup/measured") is not None]
    quantities = ("measured", "measured_high", "zero_overhead", "predicted")
    farthest = [point.metric(f"speedup/{quantity}") or 0 for point in shown for quantity in quantities]
    scale = Scale(0, 1.05 * max([1.0, *farthest]))
    return _panels(shown, lambda point: _speedup_row(point, scale), scale, one=scale.at(1))


def _speedup_row(point: Point, scale: Scale) -> Row:
    names = {"predicted": "predicted (Thm 3.8)", "zero_overhead": "zero-overhead speedup", "measured": "measured"}
    values = {quantity: point.metric(f"speedup/{quantity}") for quantity in names}
    marks = [
        Mark(quantity, f"{names[quantity]} {value:.2f}", scale.at(value))
        for quantity, value in values.items()
        if value is not None
    ]
    places = [mark.at for mark in marks]
    pieces = [Piece("range", min(places), max(places) - min(places))]
    low, high = point.metric("speedup/measured_low"), point.metric("speedup/measured_high")
    if low is not None and high is not None:
        pieces.append(Piece("repeats", scale.at(low), scale.at(high) - scale.at(low)))
    return Row(
        point=point,
        description=", ".join(mark.text for mark in reversed(marks)),
        value=f"{values['measured']:.2f}×",
        beside="" if point.metric("efficiency") is None else f"{efficiency(point.record)} of zero-overhead speedup",
        pieces=pieces,
        marks=marks,
    )


def round_panels(points: Sequence[Point]) -> list[Panel]:
    """Panels of milliseconds per round by stage, with the time of one token of plain decoding."""
    shown = [point for point in points if stages_per_round(point.record)]
    sums = [sum(stages_per_round(point.record).values()) for point in shown]
    plain = [point.metric("baseline_ms_per_token") or 0 for point in shown]
    most = 1.02 * max([*sums, *plain], default=0)
    scale = Scale(0, most or 1)
    return _panels(shown, lambda point: _round_row(point, scale), scale)


def _round_row(point: Point, scale: Scale) -> Row:
    stages = stages_per_round(point.record)
    plain, tau = point.metric("baseline_ms_per_token"), point.metric("tau")
    marks = []
    if plain is not None and point.record.point.get("batch_size", 1) == 1:  # a round of a batch serves several rows
        marks.append(Mark("plain", f"one token of plain decoding {plain:.1f} ms", scale.at(plain)))
    pieces, left = [], 0.0
    for stage, milliseconds in stages.items():
        start, end = scale.at(left), scale.at(left + milliseconds)
        number, crossing = f"{milliseconds:.1f}", marks[0].at / 100 if marks else None
        side = number_side(number, start / 100, (end - start) / 100, crossing)
        text = number if side else ""
        pieces.append(Piece(stage, start, round(end - start, 2), text, STAGE_COLOURS[stage], side == "right"))
        left += milliseconds
    description = [f"{stage} {milliseconds:.2f} ms" for stage, milliseconds in stages.items()]
    return Row(
        point=point,
        description=", ".join([*description, *(mark.text for mark in marks)]),
        value=f"{left:.1f} ms",
        beside="" if tau is None else f"{tau:.2f} tokens",
        pieces=pieces,
        marks=marks,
    )


def _panels(
    points: Sequence[Point], row: Callable[[Point], Row], scale: Scale, one: float | None = None
) -> list[Panel]:
    groups = dict.fromkeys(point.group for point in points)
    return [
        Panel(group, [row(point) for point in points if point.group == group], scale.ticks(), one) for group in groups
    ]
