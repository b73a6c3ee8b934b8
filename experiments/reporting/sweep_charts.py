"""Charts of sweeps: speedup, tokens per pass and alpha against a numeric setting that varies."""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.reporting.scale import Scale
from experiments.results.record import Record
from experiments.results.records import ROW_SETTINGS, counted, group_records

NAMES = {
    "gamma": "γ",
    "batch_size": "batch size",
    "max_new_tokens": "new tokens",
    "arrival_rate": "requests per second",
}
FEWEST_VALUES = {"temperature": 3}  # the usual two are compared by their panels; two values of another setting suffice
POWERS_FROM = 16  # ratio of the largest value to the least from which an axis is logarithmic
OPTION = "options."  # prefix of a setting from the options of drafter, verifier or gamma policy
ASSIGNMENT = re.compile(r"([\w.]+)=(.*?)(?=\s+[\w.]+=|\s*$)", re.DOTALL)

Settings = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """Points that differ in one setting only: records by its value, ascending."""

    label: str
    drafter: str
    records: dict[float, Record]


@dataclass(frozen=True)
class Condition:
    """Curves that differ only in drafter, verifier, gamma policy and their options."""

    title: str
    curves: list[Curve]


@dataclass(frozen=True)
class Sweep:
    """All points that differ in one numeric setting."""

    setting: str
    conditions: list[Condition]

    @property
    def key(self) -> str:
        """The setting as in the yaml."""
        return self.setting.removeprefix(OPTION)

    @property
    def name(self) -> str:
        """The setting as on an axis."""
        return NAMES.get(self.key, self.key.replace("_", " "))

    @property
    def values(self) -> list[float]:
        """Values of the setting, ascending."""
        curves = [curve for condition in self.conditions for curve in condition.curves]
        return sorted({value for curve in curves for value in curve.records})

    @property
    def scale(self) -> Scale:
        """Scale of the setting, in percent of the width, with room at both ends."""
        values = self.values
        in_powers = values[0] > 0 and values[-1] >= POWERS_FROM * values[0]
        if in_powers:
            room = (values[-1] / values[0]) ** 0.05
            return Scale(values[0] / room, values[-1] * room, in_powers=True)
        room = 0.05 * (values[-1] - values[0])
        return Scale(values[0] - room, values[-1] + room)

    def ticks(self) -> list[float]:
        """Values whose labels do not touch: the least, and those with room after the one before."""
        scale, labelled = self.scale, list[float]()
        for value in self.values:
            room = 4 + 1.2 * (len(f"{value:g}") + len(f"{labelled[-1]:g}")) if labelled else 0  # percent of the width
            if not labelled or scale.at(value) - scale.at(labelled[-1]) >= room:
                labelled.append(value)
        return labelled


@dataclass(frozen=True)
class Value:
    """A value of a chart at x; low and high: its interval, if known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of a chart; `kind` is measured, theory or baseline, which has no drafter."""

    label: str
    drafter: str
    kind: str
    values: list[Value]
    break_even: float | None = None

    @property
    def band(self) -> list[tuple[float, float, float]]:
        """x, low and high of the values with an interval; empty for fewer than two."""
        band = [
            (value.x, value.low, value.high)
            for value in self.values
            if value.low is not None and value.high is not None
        ]
        return band if len(band) > 1 else []


@dataclass(frozen=True)
class Chart:
    """One quantity against a setting, under one condition.

    Attributes:
        title: the condition.
        quantity: name of the quantity.
        lines: at least one measured line, of at least two values.
        top: upper end of the axis, which starts at 0; shared by all conditions.
        digits: decimals of its values.
        is_speedup: whether 1 is the speed of plain decoding.
    """

    title: str
    quantity: str
    lines: list[Line]
    top: float
    digits: int
    is_speedup: bool = False


Reader = Callable[[Record, str], float | None]


@dataclass(frozen=True)
class Quantity:
    """A drawn quantity: metrics of its measured line, of a loop without overhead, and of plain decoding."""

    name: str
    measured: str
    digits: int
    interval: str = ""  # prefix of the metrics of its 95% interval
    theory: str = ""
    baseline: str = ""
    is_rate: bool = False  # tokens per second, from metrics in milliseconds per token
    most: float | None = None  # upper end of the axis, where it is fixed

    def value(self, record: Record, key: str) -> float | None:
        found = record.metrics.get(key)
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            return None
        if self.is_rate:
            return 1000 / found if found > 0 else None
        return float(found)


SPEEDUP = Quantity("measured speedup", "speedup/measured", 2, interval="speedup/ci", theory="speedup/zero_overhead")
TAU = Quantity("τ", "tau", 2, interval="tau/ci")
ALPHA = Quantity("α empirical", "alpha/empirical", 3, interval="alpha/ci", most=1.0)  # α overlap is undefined for trees
RATE = Quantity("tokens per second", "ms_per_token", 0, baseline="baseline_ms_per_token", is_rate=True)
GOODPUT = Quantity(
    "goodput, requests per second", "serving/goodput", 1,
    theory="serving/predicted/goodput", baseline="serving/baseline/goodput",
)  # fmt: skip
LATENCIES = tuple(
    Quantity(
        f"latency p{share}, seconds", f"serving/latency_p{share}", 2,
        theory=f"serving/predicted/latency_p{share}", baseline=f"serving/baseline/latency_p{share}",
    )
    for share in (50, 99)
)  # fmt: skip
# By setting; of any other: USUAL.
QUANTITIES = {"batch_size": (SPEEDUP, TAU, ALPHA, RATE), "arrival_rate": (GOODPUT, *LATENCIES)}
USUAL = (SPEEDUP, TAU, ALPHA)


def sweeps_of(records: Iterable[Record]) -> list[Sweep]:
    """Find every numeric setting that varies among points equal in all others."""
    points = [(settings_of(record), record) for group in group_records(records) for record in group.records]
    names = dict.fromkeys(name for settings, _ in points for name in settings)
    found = [Sweep(name, _conditions(name, points)) for name in names]
    return [sweep for sweep in found if sweep.conditions]


def settings_of(record: Record) -> Settings:
    """Settings of a point, with one entry per option of its parts."""
    settings = {name: value for name, value in record.point.items() if name != "options"}
    text = str(record.point.get("options") or "")
    options = {OPTION + name: value for name, value in ASSIGNMENT.findall(text)}
    return settings | options | {"options": ASSIGNMENT.sub("", text).strip()}


def _conditions(name: str, points: Sequence[tuple[Settings, Record]]) -> list[Condition]:
    by_rest: dict[str, dict[float, Record]] = {}
    rests: dict[str, Settings] = {}
    for settings, record in points:
        value = _number(settings.get(name), is_text=name.startswith(OPTION))
        if value is not None:
            rest = {other: content for other, content in settings.items() if other != name}
            key = json.dumps(rest, sort_keys=True)
            rests[key] = rest
            by_rest.setdefault(key, {})[value] = record
    drawn = [key for key, by_value in by_rest.items() if len(by_value) >= FEWEST_VALUES.get(name, 2)]
    rests = {key: rests[key] for key in drawn}
    titles, labels = _titles(rests), _labels(rests)
    conditions: dict[str, Condition] = {}
    for key in sorted(drawn, key=lambda key: counted(labels[key])):
        fixed = json.dumps({name: value for name, value in rests[key].items() if not _is_of_row(name)}, sort_keys=True)
        condition = conditions.setdefault(fixed, Condition(titles[key], []))
        records = dict(sorted(by_rest[key].items()))
        condition.curves.append(Curve(labels[key], str(rests[key].get("drafter")), records))
    order = list(dict.fromkeys(titles.values()))
    return sorted(conditions.values(), key=lambda condition: order.index(condition.title))


def _number(value: Any, *, is_text: bool) -> float | None:
    """A finite number; of an option's text also that of a list of one number."""
    if is_text:
        try:
            value = float(str(value).strip("[]'\""))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _is_of_row(name: str) -> bool:
    return name in ROW_SETTINGS or name.startswith(OPTION)


def _varying(rests: Iterable[Settings]) -> list[str]:
    """Names of the settings that differ."""
    rests = list(rests)
    names = dict.fromkeys(name for rest in rests for name in rest)
    return [name for name in names if len({json.dumps(rest.get(name)) for rest in rests}) > 1]


def _titles(rests: dict[str, Settings]) -> dict[str, str]:
    """The temperature, then the settings that differ between conditions."""
    varying = [name for name in _varying(rests.values()) if not _is_of_row(name) and name != "temperature"]
    targets = {(rest.get("target"), rest.get("target_fingerprint")) for rest in rests.values()}
    if len(targets) == len({target for target, _ in targets}):  # one fingerprint per name: the name suffices
        varying = [name for name in varying if name != "target_fingerprint"]
    titles = {}
    for key, rest in rests.items():
        temperature = (
            [f"T = {rest['temperature']:g}"] if _number(rest.get("temperature"), is_text=False) is not None else []
        )
        titles[key] = ", ".join([*temperature, *(f"{NAMES.get(name, name)} {rest.get(name)}" for name in varying)])
    return titles


def _labels(rests: dict[str, Settings]) -> dict[str, str]:
    """The drafter, then the settings that differ between its curves."""
    labels = {}
    for key, rest in rests.items():
        varying = _varying(rival for rival in rests.values() if rival.get("drafter") == rest.get("drafter"))
        shown = []
        for name in varying:
            if name.startswith(OPTION):
                value = rest.get(name)
                shown += [] if value is None else [f"{name.removeprefix(OPTION)}={value}"]
            elif name == "gamma":
                shown.append(f"γ={rest.get(name)}")
            elif name in ("options", "verifier", "gamma_policy"):
                shown.append(str(rest.get(name)))
        labels[key] = " ".join([str(rest.get("drafter")), *shown])
    return labels


def charts_of(sweep: Sweep) -> list[list[Chart]]:
    """Charts of every condition, if they have values: QUANTITIES of the setting, or else USUAL."""
    quantities = QUANTITIES.get(sweep.setting, USUAL)
    lines = {
        quantity: [_lines(condition, quantity, sweep.scale) for condition in sweep.conditions]
        for quantity in quantities
    }
    tops = {quantity: quantity.most or _top(lines[quantity]) for quantity in quantities}
    return [
        [
            Chart(condition.title, quantity.name, found, tops[quantity], quantity.digits, quantity is SPEEDUP)
            for quantity in quantities
            if (found := lines[quantity][index])
        ]
        for index, condition in enumerate(sweep.conditions)
    ]


def _top(lines: Iterable[Iterable[Line]]) -> float:
    values = [value for found in lines for line in found for value in line.values]
    return 1.08 * max((max(value.y, value.high or 0) for value in values), default=0) or 1.0


def _lines(condition: Condition, quantity: Quantity, scale: Scale) -> list[Line]:
    """Lines of plain decoding and theory, below the measured ones; empty without measured values."""
    measured, theory = [], []
    for curve in condition.curves:
        values = _values(curve, quantity, quantity.measured)
        if len(values) > 1:
            crossing = break_even(values, scale) if quantity is SPEEDUP else None
            measured.append(Line(curve.label, curve.drafter, "measured", values, crossing))
            theory.append(Line(curve.label, curve.drafter, "theory", _values(curve, quantity, quantity.theory)))
    return [*_baseline(condition, quantity), *(line for line in theory if line.values), *measured] if measured else []


def _values(curve: Curve, quantity: Quantity, key: str) -> list[Value]:
    values = []
    for x, record in curve.records.items():
        if (y := quantity.value(record, key)) is not None:
            is_measured = key == quantity.measured
            low, high = (
                quantity.value(record, f"{quantity.interval}_{end}") if is_measured else None for end in ("low", "high")
            )
            values.append(Value(x, y, low, high))
    return values


def _baseline(condition: Condition, quantity: Quantity) -> list[Line]:
    """Plain decoding, measured once per curve: the median at every x, the upper one of an even number."""
    by_x: dict[float, list[float]] = {}
    for curve in condition.curves:
        for value in _values(curve, quantity, quantity.baseline):
            by_x.setdefault(value.x, []).append(value.y)
    values = [Value(x, sorted(found)[len(found) // 2]) for x, found in sorted(by_x.items())]
    return [Line("plain decoding", "", "baseline", values)] if values else []


def break_even(values: Sequence[Value], scale: Scale) -> float | None:
    """Value of the setting at which a speedup falls to 1; None if it does not.

    Interpolation is linear on the axis.
    """
    for before, after in itertools.pairwise(values):
        if before.y > 1 >= after.y:
            share = (before.y - 1) / (before.y - after.y)
            return scale.between(before.x, after.x, share)
    return None
