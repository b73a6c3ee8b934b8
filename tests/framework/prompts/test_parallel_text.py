"""Pairs of texts from two aligned files."""

from pathlib import Path

import pytest

from framework.prompts.parallel_text import ParallelText
from framework.prompts.prompt_source import Text


def files(folder: Path, asked: str, answered: str) -> dict[str, str]:
    paths = {"path": folder / "small.en", "reference_path": folder / "small.de"}
    for path, text in zip(paths.values(), (asked, answered), strict=True):
        path.write_text(text, encoding="utf-8")
    return {option: str(path) for option, path in paths.items()}


def test_lines_go_together_and_blank_ones_are_passed_over(tmp_path):
    source = ParallelText(**files(tmp_path, "A dog.\r\n\nA cat.\n\n", "Ein Hund.\nNichts.\nEine Katze.\n\n"))
    pairs = [Text("small.en:1", "small", "A dog.", "Ein Hund."), Text("small.en:3", "small", "A cat.", "Eine Katze.")]
    assert list(source.texts()) == list(source.texts()) == pairs


def test_files_of_different_lengths_are_refused(tmp_path):
    source = ParallelText(**files(tmp_path, "A dog.\nA cat.\n", "Ein Hund.\n"))
    with pytest.raises(
        ValueError, match=r"^path is .*small.en', with 2 lines, and .*small.de has 1; allowed: .* line by line"
    ):
        list(source.texts())


def test_files_without_a_pair_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^path is .*, which holds no text; allowed: "):
        list(ParallelText(**files(tmp_path, "\nA cat.\n", "Ein Hund.\n\n")).texts())


@pytest.mark.parametrize("option", ["path", "reference_path"])
def test_a_missing_file_names_its_key(tmp_path, option):
    given = files(tmp_path, "A dog.\n", "Ein Hund.\n") | {option: str(tmp_path / "none")}
    with pytest.raises(FileNotFoundError, match=rf"^{option} .* no such file"):
        ParallelText(**given)
