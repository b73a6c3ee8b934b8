"""BLEU, chrF and ROUGE of outputs that have a reference."""

import io

import pytest

from experiments.quality.references import quality


def test_equal_texts_have_full_marks():
    text = "Der alte Lehrer kauft drei rote Äpfel."
    metrics = ("exact", "bleu", "chrf", "rouge1", "rouge2", "rouge_l")
    assert quality([text], [text]) == pytest.approx({f"quality/{metric}": 100 for metric in metrics})


def test_bleu_is_what_it_is_by_hand():
    """Four of five words, three of four pairs, two of three threes, one of two fours: 100 (4/5 3/4 2/3 1/2)^(1/4)."""
    assert quality(["a b c d e"], ["a b c d f"])["quality/bleu"] == pytest.approx(66.874, abs=1e-3)


def test_a_short_answer_pays_for_what_it_lacks():
    """Every part of it is right, and it is one word short of six: 100 exp(1 - 6/5)."""
    assert quality(["a b c d e"], ["a b c d e f"])["quality/bleu"] == pytest.approx(81.873, abs=1e-3)


def test_chrf_sees_parts_of_words():
    near, far = (quality([text], ["Wörterbuch"])["quality/chrf"] for text in ("Wörterbücher", "Fenster"))
    assert near > 50 > 20 > far


def test_exact_matches_are_whole_texts():
    assert quality(["a b", "c d"], ["a b", "c"])["quality/exact"] == 50


def test_rouge_is_the_mean_f1_over_texts():
    """Of "a b c d" against "a b d": F1 of words 2 * 3 / 7, of pairs 2 * 1 / 5, of the longest subsequence 6 / 7."""
    found = quality(["a b c d", "e"], ["a b d", "f"])
    expected = {"rouge1": 6 / 7, "rouge2": 2 / 5, "rouge_l": 6 / 7}
    for metric, share in expected.items():
        assert found[f"quality/{metric}"] == pytest.approx(100 * share / 2)


def test_rouge_leaves_a_replaced_stderr_open():
    """Closing all log handlers, as Hydra does, once closed the stream that was stderr when ROUGE was first used."""
    from absl import logging

    handler, stream = logging.get_absl_handler().python_handler, io.StringIO()
    handler.setStream(stream)
    quality(["a"], ["a"])
    handler.close()
    assert not stream.closed


def test_rouge_needs_its_package(monkeypatch):
    monkeypatch.setattr("experiments.quality.references.find_spec", lambda name: None)
    assert set(quality(["a"], ["a"])) == {"quality/exact", "quality/bleu", "quality/chrf"}


@pytest.mark.parametrize(("texts", "references"), [([], []), (["a", "b"], ["a", None])])
def test_without_all_references_there_is_no_score(texts, references):
    assert quality(texts, references) == {}
