"""Sentences with typos, and the sentences."""

import pytest

from experiments.corpora.grammar_pairs import is_held_out
from experiments.corpora.typos import MisspeltSentences


def texts(**options):
    return list(
        MisspeltSentences(**({"split": "train", "size": 20, "sentences": 2, "rate": 0.5, "seed": 1} | options)).texts()
    )


@pytest.mark.slow
def test_references_are_sentences_of_the_split_without_typos():
    pairs = texts()
    assert len({pair.name for pair in pairs}) == 20 and pairs == texts()
    assert [pair.reference for pair in texts(rate=0)] == [pair.text for pair in texts(rate=0)]
    assert [pair.reference for pair in texts(rate=0)] == [pair.reference for pair in pairs]
    for pair in pairs:
        assert pair.text != pair.reference and len(pair.text.split()) == len(pair.reference.split())
    for pair in texts(sentences=1):
        assert not is_held_out(pair.reference)


@pytest.mark.parametrize(("option", "value"), [("sentences", 0), ("size", 0), ("rate", 2), ("split", "test")])
def test_what_cannot_be_is_refused(option, value):
    with pytest.raises(ValueError, match=rf"^{option} "):
        MisspeltSentences(**({"split": "train", "size": 1, "sentences": 1, "rate": 0, "seed": 0} | {option: value}))
