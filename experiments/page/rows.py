"""Pictures with a row per point: speedups beside what theory allows, and where the time of a round goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.page.points import Point
from experiments.page.scale import Scale, Tick
from experiments.pictures import STAGE_COLOURS, stages_per_round

LONGEST_LABEL = 26  # letters
SHARE_WITH_ROOM = 0.1  # of the width: a piece of that size has room for its number


@dataclass(frozen=True)
class Mark:
    """A value in a row: what it is, its text, and where it stands, in percent of the width."""

    kind: str
    text: str
    at: float


@dataclass(frozen=True)
class Piece:
    """A stretch of a row, in percent of the width; its text stands at its beginning, or at its end."""

    kind: str
    start: float
    width: float
    text: str = ""
    colour: str = ""
    text_at_end: bool = False


@dataclass(frozen=True)
class Row:
    """A point's row; `told` says in words what is drawn."""

    point: Point
    told: str
    value: str
    beside: str
    pieces: list[Piece]
    marks: list[Mark]


@dataclass(frozen=True)
class Panel:
    """Rows of points that may be compared, on one scale."""

    title: str
    rows: list[Row]
    ticks: list[Tick]
    one: float | None = None  # where a speedup of 1 stands

    @property
    def has_long_labels(self) -> bool:
        """Whether two panels side by side would leave no room for them."""
        return max(len(row.point.label) for row in self.rows) > LONGEST_LABEL


def speedup_panels(points: Sequence[Point]) -> list[Panel]:
    """Measured speedup, its spread, and what is attainable and what Theorem 3.8 says; one scale for all panels."""
    shown = [point for point in points if point.metric("speedup/measured") is not None]
    quantities = ("measured", "measured_high", "attainable", "theorem")
    farthest = [point.metric(f"speedup/{quantity}") or 0 for point in shown for quantity in quantities]
    scale = Scale(0, 1.05 * max([1.0, *farthest]))
    return _panels(shown, lambda point: _speedup_row(point, scale), scale, one=scale.at(1))


def _speedup_row(point: Point, scale: Scale) -> Row:
    names = {"theorem": "theorem 3.8", "attainable": "attainable", "measured": "measured"}
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
        pieces.append(Piece("spread", scale.at(low), scale.at(high) - scale.at(low)))
    efficiency = point.metric("efficiency")
    return Row(
        point=point,
        told=", ".join(mark.text for mark in reversed(marks)),
        value=f"{values['measured']:.2f}×",
        beside="" if efficiency is None else f"{efficiency:.0%} of attainable",
        pieces=pieces,
        marks=marks,
    )


def round_panels(points: Sequence[Point]) -> list[Panel]:
    """Milliseconds of a round by stage, beside one token of plain decoding."""
    shown = [point for point in points if stages_per_round(point.record)]
    sums = [sum(stages_per_round(point.record).values()) for point in shown]
    plain = [point.metric("yardstick_ms_per_token") or 0 for point in shown]
    most = 1.02 * max([*sums, *plain], default=0)
    scale = Scale(0, most or 1)
    return _panels(shown, lambda point: _round_row(point, scale), scale)


def _round_row(point: Point, scale: Scale) -> Row:
    stages = stages_per_round(point.record)
    plain, tau = point.metric("yardstick_ms_per_token"), point.metric("tau")
    marks = []
    if plain is not None and point.record["point"].get("batch_size", 1) == 1:  # a round of a batch is not one row's
        marks.append(Mark("plain", f"one token of plain decoding {plain:.1f} ms", scale.at(plain)))
    pieces, left = [], 0.0
    for stage, milliseconds in stages.items():
        start, end = scale.at(left), scale.at(left + milliseconds)
        has_room = end - start > 100 * SHARE_WITH_ROOM
        number = f"{milliseconds:.1f}" if has_room else ""
        crossed = any(start <= mark.at < (start + end) / 2 for mark in marks)  # a mark where the number would stand
        pieces.append(Piece(stage, start, round(end - start, 2), number, STAGE_COLOURS[stage], crossed))
        left += milliseconds
    told = [f"{stage} {milliseconds:.2f} ms" for stage, milliseconds in stages.items()]
    return Row(
        point=point,
        told=", ".join([*told, *(mark.text for mark in marks)]),
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
