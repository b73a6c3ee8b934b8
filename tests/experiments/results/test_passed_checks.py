"""A note of a passed check holds for one class and one version of its source, and its absence harms nobody."""

from pathlib import Path

import pytest

from experiments.results.passed_checks import has_passed, note_passed

SOURCE = "class Mine: pass\nclass Other: pass\n"


def test_a_note_is_of_one_class_in_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "noted_drafter.py").write_text(SOURCE)
    import noted_drafter  # type: ignore[import-not-found]

    assert not has_passed(noted_drafter.Mine)
    note_passed(noted_drafter.Mine)
    assert has_passed(noted_drafter.Mine) and not has_passed(noted_drafter.Other)
    (tmp_path / "noted_drafter.py").write_text(SOURCE + "# another version\n")
    assert not has_passed(noted_drafter.Mine)


def test_a_note_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").write_text("a file where the folder would be")
    for without_note in (Path, int):  # int has no source file
        note_passed(without_note)
        assert not has_passed(without_note)
