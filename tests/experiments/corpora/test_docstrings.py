"""Functions without their docstrings, and what these said."""

import ast
import itertools
from pathlib import Path

import pytest

from experiments.corpora.docstrings import Docstrings, FunctionSummaries
from experiments.corpora.standard_library import is_held_out

LIBRARY = '''
class Shape:
    def area(self, width,
             height):
        """Return the area of a shape.

        In square metres.
        """
        if width < 0:
            raise ValueError
        return width * height

    def name(self): """Say what this is called."""

    def half(self):
        """Half."""
        x = self.area(1, 2)
        y = x / 2
        return y
'''
ASKED = '''def area(self, width,
         height):
    if width < 0:
        raise ValueError
    return width * height


def area(self, width,
         height):
    """'''


def library(folder: Path) -> str:
    (folder / "argparse.py").write_text("# so that this is a library\n")
    (folder / "shape.py").write_text(LIBRARY + "#" * 2000)
    (folder / "broken.py").write_text("def (" + "#" * 2000)
    return str(folder)


def of_both(folder: str, **options: object) -> list:
    """A file's split depends on its name alone."""
    return [
        text for split in ("train", "held_out") for text in Docstrings(split=split, folder=folder, **options).texts()
    ]


def test_the_docstring_is_asked_for_and_known(tmp_path):
    [text] = of_both(library(tmp_path), longest=30)
    assert text.text == ASKED
    assert text.reference == "Return the area of a shape."
    assert text.name == "shape.py:3 area"


def test_long_functions_are_left_out(tmp_path):
    assert not of_both(library(tmp_path), longest=4)
    assert len(of_both(library(tmp_path), longest=5)) == 1


@pytest.mark.slow
def test_the_library_at_hand_has_many():
    texts = list(itertools.islice(Docstrings(split="held_out", longest=30).texts(), 60))
    assert len(texts) == 60
    for text in texts:
        ast.parse(text.text + 'sum"""\n    pass')
        assert text.reference and text.reference not in text.text


@pytest.mark.parametrize(
    ("options", "message"), [({"split": "test", "longest": 9}, "split"), ({"split": "train", "longest": 2}, "longest")]
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=rf"^{message} "):
        Docstrings(**options)
    with pytest.raises(ValueError, match=rf"^{message} "):
        FunctionSummaries(packages=False, **options)


def test_an_encoder_reads_the_function_after_the_prefix_of_summaries(tmp_path):
    folder = library(tmp_path)
    (tmp_path / "shape.py").write_text(LIBRARY * 2 + "#" * 2000)
    split = "held_out" if is_held_out("shape.py") else "train"
    [pair] = FunctionSummaries(split=split, longest=30, packages=False, folder=folder).texts()
    assert pair.text == "summarize: " + ASKED.split("\n\n\n")[0]
    assert pair.reference == "Return the area of a shape."


def test_packages_are_training_text_alone():
    with pytest.raises(ValueError, match=r"^packages is True, beside a folder or a split other than train; allowed: f"):
        FunctionSummaries(split="held_out", longest=9, packages=True)
