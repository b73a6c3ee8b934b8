"""A passed check is remembered, a failed one is not, and records of the same drafter say so."""

import json
import sys
from pathlib import Path

import pytest

from drafters.prompt_lookup import PromptLookup
from experiments import check, measure
from experiments.results.passed_checks import has_passed
from framework.conformance.report import Finding, Report
from tests.support.tiny_pair import tiny_pair


@pytest.mark.slow
def test_records_say_whether_their_drafter_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pair = [*tiny_pair(tmp_path, "def ab(x):", "abab"), "drafter=prompt_lookup"]
    target = [override for override in pair if not override.startswith("prompts")]

    def check_finds(breach: str | None) -> None:
        report = Report("PromptLookup", [Finding("a rule", breach)])
        monkeypatch.setattr(check, "check_drafter", lambda *_, **__: report)
        monkeypatch.setattr(sys, "argv", ["check", *target])
        check.main()

    with pytest.raises(SystemExit):
        check_finds("it is broken")
    assert not has_passed(PromptLookup)
    check_finds(None)
    settings = ["max_new_tokens=4", "repeats=1", "hugging_face=false", "tracker=jsonl", "hydra.run.dir=after"]
    monkeypatch.setattr(sys, "argv", ["measure", *pair, *settings])
    measure.main()
    (record,) = (tmp_path / "after").glob("*/record.json")
    assert json.loads(record.read_text())["metrics"]["guarantee/checked"] is True
