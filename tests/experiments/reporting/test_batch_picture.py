"""Curves over batch sizes, and where they fall to plain decoding."""

from dataclasses import replace

import pytest
from experiments.reporting.plots.batch_picture import curves_by_panel, pays_up_to

from experiments.reporting.plots.pictures import draw_pictures
from experiments.results.record import Record


def record(drafter: str, size: int, speedup: float, *, temperature: float = 0, **settings) -> Record:
    return Record.from_json(
        {
            "name": f"{drafter}-{size}-{temperature}",
            "point": {"drafter": drafter, "gamma": 4, "batch_size": size, "temperature": temperature, **settings},
            "metrics": {
                "speedup/measured": speedup,
                "speedup/zero_overhead": 1.1 * speedup,
                "baseline_ms_per_token": 4.0 / size,
            },
            "counts": {},
        }
    )


RECORDS = [
    *(record("small_transformer", size, speedup) for size, speedup in ((4, 1.2), (1, 2.0), (16, 0.8))),
    *(record("ngram", size, speedup) for size, speedup in ((1, 0.9), (4, 0.5))),
    *(record("ngram", size, 3.0, temperature=1) for size in (1, 4)),
    record("medusa", 1, 2.0, temperature=1),  # one size is no curve
    replace(record("ngram", 2, 1.0), metrics={}),  # failed
]


def test_points_that_differ_in_batch_size_only_are_a_curve() -> None:
    panels = curves_by_panel(RECORDS)
    assert {title: [curve.label for curve in curves] for title, curves in panels.items()} == {
        "T = 0": ["ngram", "small_transformer"],
        "T = 1": ["ngram"],
    }
    curve = panels["T = 0"][1]
    assert curve.sizes == [1, 4, 16] and curve.measured == [2.0, 1.2, 0.8]
    assert curve.plain == pytest.approx([250, 1000, 4000]) and curve.predicted == pytest.approx([2.2, 1.32, 0.88])


def test_other_settings_open_panels_that_are_told_apart() -> None:
    others = [record("ngram", size, 1.5, dtype="bfloat16") for size in (1, 2)]
    mine = [record("ngram", size, 1.5, dtype="float32") for size in (1, 2)]
    assert sorted(curves_by_panel([*others, *mine])) == ["T = 0, dtype bfloat16", "T = 0, dtype float32"]


def test_where_it_stops_paying() -> None:
    assert pays_up_to([1, 4, 16], [2.0, 1.5, 0.5]) == pytest.approx(8)  # half of the way in log2
    assert pays_up_to([1, 2], [2.0, 1.0]) == 2
    assert pays_up_to([1, 2], [2.0, 1.5]) is None
    assert pays_up_to([1, 2], [0.9, 0.5]) == 0


def test_it_is_drawn_where_there_are_curves(tmp_path) -> None:
    assert tmp_path / "batch_sizes.png" in draw_pictures(RECORDS, tmp_path / "")
    assert not any(path.name == "batch_sizes.png" for path in draw_pictures(RECORDS[-2:], tmp_path))
