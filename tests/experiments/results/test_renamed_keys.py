"""Records of earlier versions are read with today's keys."""

import json
import sys
from pathlib import Path

import pytest

from experiments import compare
from experiments.reporting.tables.comparison_table import COLUMNS
from experiments.results.record import VERSION, Record
from experiments.results.record_diff import diff_records
from experiments.results.records import group_records, load_records
from experiments.results.renamed_keys import CHOICES, KEYS, with_current_keys

EARLIER = Path(__file__).parent / "earlier_records"  # as a version with the old keys wrote them


def test_a_record_of_an_earlier_version_has_todays_keys(tmp_path: Path) -> None:
    old = {
        "point": {"drafter": "parallel", "knobs": "order=5", "gamma_policy": "additive"},
        "metrics": {"yardstick_ms_per_token": 5.0, "tau": 2.0, "speedup/theorem": 1.5, "speedup/attainable": 1.4},
        "prompts": [{"yardstick_seconds": 1.0}],
        "differences": {"yardstick": [], "hugging_face": []},
        "stages": {"prefill": 0.5, "judge": 1.0},
        "config": {"drafter": {"knobs": 1}},
    }
    (tmp_path / "record.json").write_text(json.dumps(old))
    (record,) = load_records(tmp_path)
    today = {
        "point": {"drafter": "dart", "options": "order=5", "gamma_policy": "heuristic"},
        "metrics": {"baseline_ms_per_token": 5.0, "tau": 2.0, "speedup/predicted": 1.5, "speedup/zero_overhead": 1.4},
        "prompts": [{"baseline_seconds": 1.0}],
        "differences": {"baseline": [], "hugging_face": []},
        "stages": {"prefill": 0.5, "verify_and_commit": 1.0},
        "config": {"drafter": {"knobs": 1}},
    }
    assert record.to_json() == {**Record.from_json(today).to_json(), "version": 1}
    assert with_current_keys(today) == today


def test_no_new_name_is_an_old_one() -> None:
    assert not KEYS.keys() & KEYS.values()
    for names in CHOICES.values():
        assert not names.keys() & names.values()


def test_records_of_an_earlier_version_fill_every_column() -> None:
    records = load_records(EARLIER)
    (group,) = group_records(records)
    by_drafter = {record.point["drafter"]: record for record in records}
    assert set(by_drafter) == {"ngram", "dart"} and {"gamma_policy": "heuristic"}.items() <= records[0].point.items()
    assert len(group.labels) == 2
    for column in COLUMNS:
        # Not recorded then, or without a spread, since there is one repeat.
        if not column.name.startswith(("95%", "distinct", "min")) and column.name != "operations":
            assert column.cell(by_drafter["ngram"]) not in ("", "–"), column.heading


def test_records_of_an_earlier_version_pair_with_the_same_ones_of_today() -> None:
    now = [Record.from_json({**record.to_json(), "version": VERSION}) for record in load_records(EARLIER)]
    found = diff_records(load_records(EARLIER), now)
    assert len(found.pairs) == 2


@pytest.mark.slow
def test_compare_shows_records_of_an_earlier_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    arguments = [f"records={EARLIER}", f"compare_to={EARLIER}", "tracker=jsonl", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    compare.main()
    table = (tmp_path / "table.md").read_text()
    assert "| dart |" in table and "predicted (Thm 3.8)" in table and "| baseline |" in table
    assert "ngram" in capsys.readouterr().out and "zero" in (tmp_path / "report.html").read_text()
