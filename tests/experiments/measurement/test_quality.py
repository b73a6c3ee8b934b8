"""BLEU and chrF of outputs that have a reference."""

import pytest

from experiments.measurement.quality import quality


def test_equal_texts_have_full_marks():
    text = "Der alte Lehrer kauft drei rote Äpfel."
    assert quality([text], [text]) == pytest.approx({"quality/bleu": 100, "quality/chrf": 100})


def test_bleu_is_what_it_is_by_hand():
    """Four of five words, three of four pairs, two of three threes, one of two fours: 100 (4/5 3/4 2/3 1/2)^(1/4)."""
    assert quality(["a b c d e"], ["a b c d f"])["quality/bleu"] == pytest.approx(66.874, abs=1e-3)


def test_a_short_answer_pays_for_what_it_lacks():
    """Every part of it is right, and it is one word short of six: 100 exp(1 - 6/5)."""
    assert quality(["a b c d e"], ["a b c d e f"])["quality/bleu"] == pytest.approx(81.873, abs=1e-3)


def test_chrf_sees_parts_of_words():
    near, far = (quality([text], ["Wörterbuch"])["quality/chrf"] for text in ("Wörterbücher", "Fenster"))
    assert near > 50 > 20 > far


@pytest.mark.parametrize(("texts", "references"), [([], []), (["a", "b"], ["a", None])])
def test_without_all_references_there_is_no_score(texts, references):
    assert quality(texts, references) == {}
