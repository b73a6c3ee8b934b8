"""Texts of any characters, and clocks that jump: through prompts, a measurement, its records, table and page."""

import datetime
import itertools
import json
import sys
import time
from pathlib import Path

import pytest

from experiments import compare, measure
from experiments.measurement import bench
from experiments.results.record import Record
from experiments.results.records import load_records
from framework.prompts.jsonl import Jsonl
from framework.prompts.prompt_source import Text
from tests.support.tiny_pair import tiny_pair

TEXTS = ["ab\0cd", "é ab 😀", "\u202eab", "a\u2028b\u2029c\x85d", "\ufeffab", "a\r\nb", "Z\u0301a", "</script>a"]
CATEGORY = "k\0 é😀|<b>\u2028\nk"


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    """The record of one measured point, whose prompts and category are unusual."""
    pair = tiny_pair(folder, "x")
    lines = (json.dumps({"prompt": text, "category": CATEGORY}) + "\n" for text in TEXTS)
    (folder / "prompts.jsonl").write_text("".join(lines))
    settings = ["max_new_tokens=8", "repeats=1", "hugging_face=false", "tracker=jsonl", "engine.compile=false",
                "prompts.source.category_field=category", "prompts.count=null", "drafter=prompt_lookup"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["measure", *pair, *settings, f"hydra.run.dir={folder / 'out'}"])
    measure.main()
    (record,) = load_records(folder / "out")
    return record


def test_texts_of_any_characters_are_read_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "category": CATEGORY}) + "\n" for text in TEXTS))
    source = Jsonl(path=str(file), field="prompt", reference_field=None, category_field="category", tests=None)
    assert [(text.text, text.category) for text in source.texts()] == [(text, CATEGORY) for text in TEXTS]


@pytest.mark.parametrize("place", ["text", "reference", "next_turns"])
def test_half_a_surrogate_pair_is_one_line(place: str) -> None:
    broken = {place: ("ab \ud800",) if place == "next_turns" else "ab \ud800"}
    with pytest.raises(ValueError, match=r"text x:3 holds '\\ud800', half of a surrogate pair.*prompts\.source"):
        Text(**{"name": "x:3", "category": "c", "text": "ab", **broken})


@pytest.mark.slow
def test_they_pass_through_records_table_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record = measured(tmp_path, monkeypatch)
    assert [prompt["category"] for prompt in record.prompts] == [CATEGORY] * len(TEXTS)
    (file,) = (tmp_path / "out").glob("*/prompts.jsonl")
    rows = file.read_bytes().split(b"\n")[:-1]  # a line is a row, whatever is in it
    assert [json.loads(row) for row in rows] == record.prompts
    monkeypatch.setattr(sys, "argv", ["compare", f"records={tmp_path / 'out'}", f"hydra.run.dir={tmp_path / 'again'}"])
    compare.main()
    assert "prompt_lookup" in capfd.readouterr().out
    pages = list(tmp_path.rglob("report.html"))
    assert len(pages) == 2
    for page in pages:
        text = page.read_bytes().decode()
        assert "\0" not in text and "\ud83d" not in text and "</script>a" not in text


@pytest.mark.slow
def test_a_clock_that_jumps_changes_no_measured_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day leaps by years at every look; what is measured lies within what the command took."""
    leaps, real = itertools.cycle([3e8, -3e8]), time.time

    class Leaping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.datetime.fromtimestamp(real() + next(leaps), tz)

    monkeypatch.setattr(time, "time", lambda: real() + next(leaps))
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + next(leaps)) * 1e9))
    monkeypatch.setattr(bench, "datetime", Leaping)
    begun = time.monotonic()
    record = measured(tmp_path, monkeypatch)
    took = time.monotonic() - begun
    seconds = [value for key, value in numbers_of(record.to_json()) if "seconds" in key]
    assert len(seconds) > len(TEXTS) and all(0 <= value <= took for value in seconds)


def numbers_of(value: object, key: str = "") -> list[tuple[str, float]]:
    """All numbers of a record, each with the keys that lead to it."""
    if isinstance(value, dict):
        return [found for name, entry in value.items() for found in numbers_of(entry, f"{key}/{name}")]
    if isinstance(value, list):
        return [found for entry in value for found in numbers_of(entry, key)]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return [(key, float(value))] if is_number else []
