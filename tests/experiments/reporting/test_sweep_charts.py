"""Curves over a setting: what varies is found, whatever it is, and drawn against the numbers of the records."""

import itertools
from dataclasses import replace

import pytest

from experiments.reporting.plots.pictures import draw_pictures
from experiments.reporting.scale import Scale
from experiments.reporting.sweep_charts import Chart, Sweep, Value, break_even, charts_of, sweeps_of
from experiments.results.record import Record
from tests.experiments.reporting.test_comparison_table import make_record


def batch(drafter: str, size: int, speedup: float, temperature: float = 0) -> Record:
    changes = {"ms_per_token": 4 / speedup / size, "baseline_ms_per_token": 4 / size, "speedup/zero_overhead": 3.0}
    return make_record(drafter, temperature, speedup, batch_size=size, **changes)


BATCHES = [
    *(batch("small_transformer", size, speedup) for size, speedup in ((4, 1.2), (1, 2.0), (16, 0.8))),
    *(batch("ngram", size, speedup) for size, speedup in ((1, 0.9), (4, 0.5))),
    *(batch("ngram", size, 3.0, temperature=1) for size in (1, 4)),
    batch("medusa", 1, 2.0, temperature=1),  # one size is no curve
    replace(batch("ngram", 2, 1.0), metrics={}),  # failed
]


def chart(sweep: Sweep, quantity: str, title: str) -> Chart:
    (found,) = [
        each for charts in charts_of(sweep) for each in charts if (each.quantity, each.title) == (quantity, title)
    ]
    return found


def with_options(record: Record, options: str) -> Record:
    return replace(record, point=record.point | {"options": options})


def test_points_that_differ_in_batch_size_only_are_a_curve() -> None:
    (sweep,) = sweeps_of(BATCHES)
    assert sweep.setting == "batch_size" and sweep.values == [1, 2, 4, 16]
    labels = {condition.title: [curve.label for curve in condition.curves] for condition in sweep.conditions}
    assert labels == {"T = 0": ["ngram", "small_transformer"], "T = 1": ["ngram"]}
    speedups = {line.label: line for line in chart(sweep, "measured speedup", "T = 0").lines if line.kind == "measured"}
    assert [(value.x, value.y) for value in speedups["small_transformer"].values] == [(1, 2.0), (4, 1.2), (16, 0.8)]
    assert [(value.x, value.y) for value in speedups["ngram"].values] == [(1, 0.9), (4, 0.5)]


def test_throughput_stands_beside_that_of_plain_decoding() -> None:
    (sweep,) = sweeps_of(BATCHES)
    rates = {line.label: line for line in chart(sweep, "tokens per second", "T = 0").lines}
    assert [value.y for value in rates["plain decoding"].values] == pytest.approx([250, 1000, 4000])
    assert [value.y for value in rates["small_transformer"].values] == pytest.approx([500, 1200, 3200])


def test_goodput_over_arrival_rates_stands_beside_its_prediction_and_that_of_plain_decoding() -> None:
    records = []
    for rate, goodput in ((2.0, 2.0), (8.0, 5.0)):
        served = {"serving/goodput": goodput, "serving/predicted/goodput": 6.0, "serving/baseline/goodput": 1.0}
        record = make_record("ngram", 0, 1.2, **served, **{"serving/latency_p99": 3.0})
        records.append(replace(record, point=record.point | {"refill": True, "arrival_rate": rate}))
    (sweep,) = sweeps_of(records)
    assert sweep.name == "requests per second" and len(charts_of(sweep)[0]) == 2  # no record has latency_p50
    lines = {line.kind: line for line in chart(sweep, "goodput, requests per second", "T = 0").lines}
    values = {kind: [(value.x, value.y) for value in line.values] for kind, line in lines.items()}
    assert values == {
        "measured": [(2, 2), (8, 5)], "theory": [(2, 6), (8, 6)], "baseline": [(2, 1), (8, 1)],
    }  # fmt: skip


def test_gamma_is_swept_by_drafter_and_temperature() -> None:
    records = [
        make_record(drafter, temperature, 1.5, gamma=gamma, tau=1 + gamma)
        for drafter in ("ngram", "medusa")
        for temperature in (0, 1)
        for gamma in (4, 1, 2)
    ]
    (sweep,) = sweeps_of(records)
    assert sweep.name == "γ" and [condition.title for condition in sweep.conditions] == ["T = 0", "T = 1"]
    assert [each.quantity for each in charts_of(sweep)[0]] == ["measured speedup", "τ", "α empirical"]
    for line in chart(sweep, "τ", "T = 1").lines:
        assert [(value.x, value.y) for value in line.values] == [(1, 2), (2, 3), (4, 5)]


def test_options_are_swept_one_at_a_time() -> None:
    records = [
        with_options(make_record("medusa", 0, 1.2), f"nodes={nodes} form={form} branching=[{branching}]")
        for nodes in (1, 8, 64)
        for form in ("tree", "chain")
        for branching in ("2", "3")
    ]
    sweeps = {sweep.name: sweep for sweep in sweeps_of(records)}
    assert list(sweeps) == ["nodes", "branching"]  # a list of one number counts as the number
    assert sweeps["nodes"].values == [1, 8, 64] and sweeps["branching"].values == [2, 3]
    (condition,) = sweeps["branching"].conditions
    labels = [curve.label for curve in condition.curves]
    assert labels == [f"medusa nodes={nodes} form={form}" for nodes in (1, 8, 64) for form in ("chain", "tree")]


def test_values_with_spaces_are_told_apart() -> None:
    records = [
        with_options(make_record("transformer_tree", 0, 1.2, gamma=gamma), f"branching={branching}")
        for gamma, branching in ((2, "[3, 2]"), (4, "[3, 1]"))
    ]
    assert sweeps_of(records) == []  # they differ in more than gamma


def test_two_temperatures_are_compared_by_panels_and_three_are_a_curve() -> None:
    assert sweeps_of([make_record("ngram", temperature, 1.2) for temperature in (0, 1)]) == []
    (sweep,) = sweeps_of([make_record("ngram", temperature, 1.2) for temperature in (0, 0.5, 1)])
    assert sweep.name == "temperature" and sweep.values == [0, 0.5, 1]


def test_other_settings_open_panels_that_are_told_apart() -> None:
    records = [
        replace(record, point=record.point | {"dtype": dtype})
        for dtype in ("float32", "bfloat16")
        for record in (batch("ngram", 1, 1.5), batch("ngram", 2, 1.5))
    ]
    (sweep,) = sweeps_of(records)
    assert sorted(condition.title for condition in sweep.conditions) == [
        "T = 0, dtype bfloat16",
        "T = 0, dtype float32",
    ]


def test_intervals_are_those_of_the_records() -> None:
    records = [make_record("ngram", 0, 1.5, gamma=gamma, **{"tau/ci_low": 1.9, "tau/ci_high": 2.6}) for gamma in (1, 2)]
    (sweep,) = sweeps_of(records)
    (line,) = chart(sweep, "τ", "T = 0").lines
    assert line.band == [(1, 1.9, 2.6), (2, 1.9, 2.6)]
    assert all(each.band == [] for each in chart(sweep, "measured speedup", "T = 0").lines if each.kind != "measured")


def test_where_it_stops_paying() -> None:
    powers = Scale(1, 16, in_powers=True)

    def end(*speedups: float) -> float | None:
        return break_even([Value(x, y) for x, y in zip((1, 4, 16), speedups, strict=False)], powers)

    assert end(2.0, 1.5, 0.5) == pytest.approx(8)  # half of the way in log2
    assert end(2.0, 1.0) == 4
    assert end(2.0, 1.5) is None and end(0.9, 0.5) is None
    assert break_even([Value(2, 1.5), Value(4, 0.5)], Scale(0, 4)) == 3


def test_labels_of_an_axis_have_room() -> None:
    records = [batch("ngram", size, 1.5) for size in [*range(1, 40), 1000]]
    (sweep,) = sweeps_of(records)
    places = [sweep.scale.at(value) for value in sweep.ticks()]
    assert sweep.ticks()[0] == 1 and 3 < len(places) < 15
    assert min(after - before for before, after in itertools.pairwise(places)) > 5


@pytest.mark.slow
def test_a_picture_has_the_name_of_its_setting(tmp_path) -> None:
    assert tmp_path / "over_batch_size.png" in draw_pictures(BATCHES, tmp_path)
    assert not any(path.name.startswith("over_") for path in draw_pictures(BATCHES[-2:], tmp_path / "few"))
