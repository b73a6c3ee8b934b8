"""Plain text as prompts and as a corpus: units, order, and errors for empty sources."""

import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import measure
from experiments.results.records import load_records
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.drafting.ngram_tables import tokenised_documents
from framework.prompts.plain_text import PlainText
from framework.prompts.prompt_source import Text


def source(path: Path | str, *, glob: str = "**/*.txt", split_on: str = "file") -> PlainText:
    return PlainText(path=str(path), glob=glob, split_on=split_on)


def folder_of(tmp_path: Path, **files: str) -> Path:
    """A folder of files named by their path, with __ for the separator."""
    for name, content in files.items():
        path = tmp_path / (name.replace("__", "/") + ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return tmp_path


def one(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "one.txt"
    path.write_bytes(content)
    return path


def test_a_file_is_one_text_as_it_is(tmp_path):
    path = one(tmp_path, "  naïve γ\n\nend\n".encode())
    assert list(source(path).texts()) == [Text("one.txt", "one", "  naïve γ\n\nend\n")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_and_paragraphs_are_named_by_their_first_line(tmp_path, end):
    path = one(tmp_path, end.join(["", "a ", " b", " \t", "", "c"]).encode())
    lines = list(source(path, split_on="line").texts())
    assert [(text.name, text.text) for text in lines] == [("one.txt:2", "a "), ("one.txt:3", " b"), ("one.txt:6", "c")]
    paragraphs = list(source(path, split_on="paragraph").texts())
    assert [(text.name, text.text) for text in paragraphs] == [("one.txt:2", "a \n b"), ("one.txt:6", "c")]
    (whole,) = source(path).texts()
    assert whole.text == "\na \n b\n \t\n\nc"


def test_only_a_newline_ends_a_line(tmp_path):
    path = one(tmp_path, "a\u2028b\x85c\x0cd\n".encode())
    assert [text.text for text in source(path, split_on="line").texts()] == ["a\u2028b\x85c\x0cd"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = one(tmp_path, b"\xef\xbb\xbfa\nb")
    assert [text.text for text in source(path, split_on="line").texts()] == ["a", "b"]


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    folder = folder_of(tmp_path / "all", b="3", a="1", news__z="4", news__deep__a="5", aa="2", blank=" \n")
    (folder / "other.md").write_text("not asked for")
    expected = [("a.txt", "all"), ("aa.txt", "all"), ("b.txt", "all")]
    expected += [("news/deep/a.txt", "news"), ("news/z.txt", "news")]
    texts = list(source(folder).texts())
    assert [(text.name, text.category) for text in texts] == expected
    assert texts == list(source(folder).texts())
    assert [text.name for text in source(folder, glob="*.txt").texts()] == ["a.txt", "aa.txt", "b.txt"]
    assert [text.text for text in source(folder, glob="*.md").texts()] == ["not asked for"]


def test_the_folder_one_is_in_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(folder_of(tmp_path / "here.v2", a="x"))
    assert [text.category for text in source(".").texts()] == ["here.v2"]


def test_no_more_is_read_than_asked_for(tmp_path):
    folder = folder_of(tmp_path, a="first", b="second")
    (folder / "b.txt").write_bytes(b"\xff")
    assert next(source(folder).texts()).text == "first"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "nowhere"}, r"^path is 'nowhere', no such file or folder"),
        ({"split_on": "word"}, r"^split_on is 'word'; allowed: file, line, paragraph"),
        ({"glob": "*.rst"}, r"^glob is '\*\.rst', no file in .* fits it"),
        ({"glob": ""}, r"^glob is '', .*; allowed: a pattern such as \*\.txt"),
        ({"glob": "/abs/*"}, r"^glob is '/abs/\*', "),
    ],
)
def test_wrong_settings_name_their_key_at_once(tmp_path, settings, message):
    folder = folder_of(tmp_path, a="x")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        source(**{"path": folder} | settings)


@pytest.mark.parametrize("split_on", ["file", "line", "paragraph"])
def test_what_is_not_utf8_is_named_with_its_byte(tmp_path, split_on):
    good = "naïve\n\nline\n".encode()
    path = one(tmp_path, good + "café".encode("latin-1") + b"\n")
    with pytest.raises(ValueError, match=rf"^path is .*one\.txt', which is not UTF-8: byte {len(good) + 3} "):
        list(source(path, split_on=split_on).texts())


@pytest.mark.parametrize("split_on", ["file", "line", "paragraph"])
def test_nothing_to_read_is_an_error(tmp_path, split_on):
    with pytest.raises(ValueError, match=r"^path is .*, which holds no text; allowed: .*not blank"):
        list(source(one(tmp_path, b" \n\n"), split_on=split_on).texts())


def test_it_serves_as_a_corpus(tmp_path):
    target = tiny_target()
    documents = tokenised_documents(source(one(tmp_path, b"ab\nc"), split_on="line"), target)
    assert [ids.tolist() for ids in documents] == [[2, 3], [4]]  # end of text is 0, space 1, a 2
    assert documents[0].dtype == np.int64


@pytest.mark.slow
def test_it_is_chosen_by_its_yaml_for_both(tmp_path, monkeypatch, capfd):
    """The command line: prompts=plain_text, and the same class as a drafter's corpus."""
    save_tiny(tmp_path / "model", context=256)
    folder = folder_of(tmp_path / "texts", a="def ab", b="cab")
    corpus = f"{{_target_: framework.prompts.plain_text.PlainText, path: {folder}, glob: '*.txt', split_on: line}}"
    arguments = [
        "target=pretrained", f"target.path={tmp_path / 'model'}", "target.dtype=float32", "device=cpu",
        "prompts=plain_text", f"prompts.source.path={folder}", "drafter=ngram", "~drafter.corpus",
        f"+drafter.corpus={corpus}", "max_new_tokens=6", "repeats=1", "hugging_face=false", "tracker=jsonl",
        f"hydra.run.dir={tmp_path / 'run'}",
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["measure", *arguments])
    measure.main()
    capfd.readouterr()
    (record,) = load_records(tmp_path / "run")
    assert record.config["prompts"]["source"]["path"] == str(folder)
    lines = next((tmp_path / "run").rglob("prompts.jsonl")).read_text().splitlines()
    assert len(lines) == 2
