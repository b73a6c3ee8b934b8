"""Records under random content: what is written is read back, and whatever is read can be shown."""

import io
import json
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from rich.console import Console

from experiments.reporting.tables.comparison_table import comparison_table, markdown_table
from experiments.results.record import Record
from experiments.results.records import ROW_SETTINGS, group_records, load_records
from experiments.tracking.tracker import PROMPTS_FILE, RECORD_FILE, JsonlTracker, Point
from tests.support.fuzzing import fuzz

TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "\n", "\r\u2028", "a|b", "[red]", "[/]", "\\", "‼", "😀", "\ud800"])
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([0, 1, 1.25]))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), max_size=5)

# What a record says, each of it possibly missing or None.
MAYBE_NUMBER = st.one_of(st.none(), st.floats(0, 1e6), st.integers(0, 5))
MAYBE_BOOLEAN = st.sampled_from([None, True, False])
METRICS = st.fixed_dictionaries(
    {},
    optional={
        key: MAYBE_NUMBER
        for key in ("alpha/overlap", "alpha/empirical", "tau", "tau/eq1", "c", "efficiency", "ms_per_token",
                    "speedup/predicted", "speedup/zero_overhead", "speedup/measured", "speedup/measured_low",
                    "speedup/measured_high", "speedup/end_to_end", "baseline_ms_per_token", "hf_generate_ms_per_token",
                    "speedup/ci_low", "speedup/ci_high", "tau/ci_low", "distinct_4grams", "time_over_parts")
    }
    | {key: MAYBE_BOOLEAN for key in ("alpha/check", "tokens_equal_baseline", "tokens_equal_hf")},
)  # fmt: skip
SETTINGS = st.fixed_dictionaries(
    {},
    optional={key: st.one_of(st.none(), TEXTS) for key in ("drafter", "options", "verifier", "gamma_policy")}
    | {
        "guarantee": st.sampled_from([None, "exact", "greedy-exact", "lossy"]),
        "gamma": st.one_of(st.none(), st.integers(0, 1000)),
        "temperature": st.sampled_from([None, 0, 0.0, 1, 0.7]),
        "target": st.sampled_from(["zoo", "a|b"]),
    },
)
RECORDS = st.fixed_dictionaries({"point": SETTINGS, "metrics": METRICS}, optional={"name": TEXTS, "extra": VALUES})


def as_read(value: Any) -> Any:
    """The value, where numbers that are not finite became null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [as_read(item) for item in value]
    return {key: as_read(item) for key, item in value.items()} if isinstance(value, dict) else value


def tracked_point(folder: Path, rows: list[dict[str, Any]], record: dict[str, Any]) -> Path:
    """The folder of a point that was tracked from start to finish."""
    tracker, point = JsonlTracker(), Point(folder=folder, name="point", study="s", settings={}, config={})
    tracker.start(point)
    for row in rows:
        tracker.log_prompt(row)
    tracker.finish(record)
    return folder / "point"


def loaded(folder: Path) -> list[Record]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_records(folder)


@fuzz(15, rows=ROWS, record=RECORDS, keep=st.floats(0, 1))
def test_what_is_tracked_is_read_back(rows: list[dict[str, Any]], record: dict[str, Any], keep: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        point = tracked_point(Path(folder), rows, record)
        assert loaded(Path(folder)) == [Record.from_json(as_read(record))]
        written = (point / PROMPTS_FILE).read_bytes()
        lines = written.split(b"\n")
        assert lines.pop() == b"" and [json.loads(line) for line in lines] == as_read(rows)
        # Cut at any byte, by a kill or a full disk: whole lines are still what was logged, and at most one is partial.
        cut = written[: round(keep * len(written))]
        *whole, rest = cut.split(b"\n")
        assert [json.loads(line) for line in whole] == as_read(rows[: len(whole)])
        assert not rest or lines[len(whole)].startswith(rest)


@fuzz(10, record=RECORDS, keep=st.floats(0, 0.99))
def test_half_a_record_is_told_and_left_out(record: dict[str, Any], keep: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = tracked_point(Path(folder), [], record) / RECORD_FILE
        written = file.read_bytes()
        file.write_bytes(written[: int(keep * (len(written) - 2))])  # without its last brace
        with warnings.catch_warnings(record=True) as printed:
            warnings.simplefilter("always")
            assert load_records(Path(folder)) == []
        assert [str(file) in str(warning.message) for warning in printed] == [True]


@fuzz(25, records=st.lists(RECORDS.map(Record.from_json), max_size=4), width=st.sampled_from([120, 80, 20]))
def test_every_record_is_shown_once(records: list[Record], width: int) -> None:
    groups = group_records(records)
    shown = [record for group in groups for record in group.records]
    assert sorted(map(id, shown)) == sorted(map(id, records))
    for group in groups:
        others = [
            {key: value for key, value in record.point.items() if key not in ROW_SETTINGS} for record in group.records
        ]
        assert all(other == others[0] for other in others) and len(group.labels) == len(group.records)
        speeds = [record.metrics.get("speedup/measured") for record in group.records]
        known = [speed for speed in speeds if speed is not None]
        assert known == sorted(known, reverse=True) and speeds[: len(known)] == known  # fastest first, unknown last
    markdown = markdown_table(records)
    tables = [line for line in markdown.split("\n") if line.startswith("|")]
    baselines = sum(line.startswith(("| baseline |", "| HF generate |")) for line in tables)
    assert len(tables) - baselines == len(records) + 2 * len(groups)
    Console(width=width, file=io.StringIO()).print(comparison_table(records, width=width))
