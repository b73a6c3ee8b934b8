"""Output quality against references: exact matches, BLEU, chrF and, with the package rouge-score, ROUGE."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec

CHRF_BETA = 2  # weight of recall against precision; 2 is the usual choice for chrF
ROUGE = {"rouge1": "quality/rouge1", "rouge2": "quality/rouge2", "rougeL": "quality/rouge_l"}


def quality(texts: Sequence[str], references: Sequence[str | None]) -> dict[str, float]:
    """Exact matches, corpus BLEU and chrF, and ROUGE-1, 2 and L if rouge-score is installed, from 0 to 100.

    The result is empty if there are no texts or one has no reference.

    BLEU (Papineni et al., 2002) and chrF (Popović, 2015) are computed by nltk, BLEU over n-grams up to 4 of words: runs
    of letters and digits, or runs of other non-space characters. It differs slightly from sacrebleu, which tokenises
    differently. ROUGE (Lin, 2004) is the mean F1 over texts, of stemmed words of letters and digits.
    """
    known = [reference for reference in references if reference is not None]
    if not texts or len(known) < len(texts):
        return {}
    from nltk.tokenize import wordpunct_tokenize  # takes seconds
    from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu
    from nltk.translate.chrf_score import corpus_chrf

    words = [wordpunct_tokenize(text) for text in texts]
    expected = [[wordpunct_tokenize(reference)] for reference in known]
    # Without smoothing, a corpus with no matching 4-gram would score 0, however many 3-grams match.
    bleu = corpus_bleu(expected, words, smoothing_function=SmoothingFunction().method1)
    chrf = corpus_chrf(known, list(texts), beta=CHRF_BETA)
    equal = sum(text.strip() == reference.strip() for text, reference in zip(texts, known, strict=True)) / len(texts)
    found = {"quality/exact": 100 * equal, "quality/bleu": 100 * bleu, "quality/chrf": 100 * chrf}
    return found | _rouge(texts, known)


def _rouge(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """ROUGE from 0 to 100; empty without the package."""
    if find_spec("rouge_score") is None:
        return {}
    from absl import logging
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenizers import DefaultTokenizer

    # absl's log handler closes its stream at exit; it must not close a notebook's replacement of stderr.
    logging.get_absl_handler().python_handler.setStream(sys.__stderr__)
    scorer = RougeScorer(list(ROUGE), tokenizer=DefaultTokenizer(use_stemmer=True))  # the default one, without a notice
    scores = [scorer.score(reference, text) for text, reference in zip(texts, references, strict=True)]
    return {metric: 100 * sum(score[kind].fmeasure for score in scores) / len(scores) for kind, metric in ROUGE.items()}
