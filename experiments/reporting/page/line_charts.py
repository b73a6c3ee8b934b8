"""Line charts of the page: alpha by draft position, and quantities over a setting that varies."""

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.reporting import sweep_charts
from experiments.reporting.page.points import Point
from experiments.reporting.plots.picture_style import INK, LINE_STYLES, LineLook, Look, looks_by_label
from experiments.reporting.scale import Scale, Tick
from experiments.reporting.sweep_charts import Chart, Sweep, charts_of, sweeps_of
from experiments.results.acceptance import alphas_by_position
from experiments.results.record import Record

TOP, BOTTOM = 12, 204  # y of the plot area in pixels; page.html sets the panel height to match
DASHES = dict(zip(LINE_STYLES, ("", "6 3", "6 3 1 3", "1.5 3"), strict=True))
PLAIN = Look(INK, "circle")


@dataclass(frozen=True)
class Dot:
    """A value on a line.

    Attributes:
        x: position in percent of the width.
        y: position in pixels.
        text: the value in words.
        low, high: y of its interval, if any.
    """

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
        look: colour and marker.
        dash: SVG stroke-dasharray.
        dots: values on the line.
        kind: measured, theory or baseline.
        level: y of an extra horizontal line; in alpha charts, alpha over all positions.
        crossing: break-even of speculation.
        band: SVG points of the area between the ends of the intervals.
    """

    label: str
    drafter: str
    look: Look
    dash: str
    dots: list[Dot]
    kind: str = "measured"
    level: float | None = None
    crossing: Dot | None = None
    band: str = ""

    @property
    def path(self) -> str:
        return " ".join(f"{dot.x:g},{dot.y:g}" for dot in self.dots)


@dataclass(frozen=True)
class Panel:
    """Lines on common axes, and the same numbers as a table, heading first.

    Attributes:
        one: y of a speedup of 1, if speedups are drawn.
    """

    title: str
    group: str
    description: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    lines: list[Line]
    table: list[list[str]]
    one: float | None = None


@dataclass(frozen=True)
class SweepView:
    """Panels over one setting, one row per condition, and the lines of their common legend."""

    name: str
    rows: list[list[Panel]]
    legend: list[Line]


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
    looks = looks_by_label((point.drafter, point.label) for point in shown)
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
            look = looks[point.drafter, point.label]
            lines.append(Line(point.label, point.drafter, look, DASHES[look.style], dots, level=level))
        table = [["drafter", *(tick.text for tick in ticks)]]
        for point in members:
            values = [f"{alpha:.3f}" for _, alpha, *_ in found[id(point)]]
            table.append([point.label, *values, *["–"] * (deepest - len(values))])
        description = f"Line chart, {group}: acceptance rate of tested tokens at draft positions 1 to {deepest}"
        panels.append(Panel(group, group, description, ticks, down.ticks(5), lines, table))
    return panels


def sweep_views(records: Sequence[Record]) -> list[SweepView]:
    """Charts over every numeric setting that varies."""
    found = [(sweep, [charts for charts in charts_of(sweep) if charts]) for sweep in sweeps_of(records)]
    return [_sweep_view(sweep, rows) for sweep, rows in found if rows]


def _sweep_view(sweep: Sweep, rows: Sequence[Sequence[Chart]]) -> SweepView:
    looks = looks_by_label((line.drafter, line.label) for row in rows for chart in row for line in chart.lines)
    panels = [[_sweep_panel(sweep, chart, looks) for chart in row] for row in rows]
    lines = [line for row in panels for panel in row for line in panel.lines if line.kind != "theory"]
    legend = {(line.drafter, line.label): line for line in lines}
    return SweepView(sweep.name, panels, [legend[key] for key in looks if key in legend])


def _sweep_panel(sweep: Sweep, chart: Chart, looks: dict[tuple[str, str], LineLook]) -> Panel:
    across, down = sweep.scale, Scale(0, chart.top, BOTTOM, TOP)
    ticks = [Tick(f"{value:g}", across.at(value)) for value in sweep.ticks()]
    title = f"{chart.quantity}, {chart.title}".removesuffix(", ")
    span = f"{sweep.name} {sweep.values[0]:g} to {sweep.values[-1]:g}"
    return Panel(
        title=title,
        group="",
        description=f"Line chart, {title}: {chart.quantity} at {span}",
        x_ticks=ticks,
        y_ticks=down.ticks(5),
        lines=[_sweep_line(line, chart, sweep.name, across, down, looks) for line in chart.lines],
        table=_sweep_table(sweep, chart),
        one=down.at(1) if chart.is_speedup else None,
    )


def _sweep_line(
    line: sweep_charts.Line, chart: Chart, name: str, across: Scale, down: Scale, looks: dict[tuple[str, str], LineLook]
) -> Line:
    quantity = chart.quantity
    if line.kind == "theory":
        quantity = "zero-overhead speedup" if chart.is_speedup else f"predicted {quantity}"
    dots = []
    for value in line.values:
        text = f"{line.label}, {name} {value.x:g}: {quantity} {value.y:.{chart.digits}f}"
        if value.low is not None and value.high is not None:
            text += f" ({value.low:.{chart.digits}f} to {value.high:.{chart.digits}f})"
        dots.append(Dot(across.at(value.x), down.at(value.y), text))
    crossing = None
    if line.break_even is not None:
        text = f"{line.label} breaks even at {name} {line.break_even:.3g}"
        crossing = Dot(across.at(line.break_even), down.at(1), text)
    upper = [(across.at(x), down.at(high)) for x, _, high in line.band]
    lower = [(across.at(x), down.at(low)) for x, low, _ in reversed(line.band)]
    look = looks[line.drafter, line.label]
    return Line(
        label=line.label,
        drafter=line.drafter,
        look=look if line.drafter else PLAIN,
        dash="" if line.kind == "theory" else DASHES[look.style],
        dots=dots,
        kind=line.kind,
        crossing=crossing,
        band=" ".join(f"{x:g},{y:g}" for x, y in [*upper, *lower]),
    )


def _sweep_table(sweep: Sweep, chart: Chart) -> list[list[str]]:
    """Values of the lines; the last column has the break-even, if there is any."""
    lines = [line for line in chart.lines if line.kind != "theory"]
    ends = ["break-even"] if any(line.break_even is not None for line in lines) else []
    table = [[chart.quantity, *(f"{x:g}" for x in sweep.values), *ends]]
    for line in lines:
        known = {value.x: f"{value.y:.{chart.digits}f}" for value in line.values}
        end = ["–" if line.break_even is None else f"{line.break_even:.3g}"] if ends else []
        table.append([line.label, *(known.get(x, "–") for x in sweep.values), *end])
    return table
