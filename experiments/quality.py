"""How good outputs are that have a reference: BLEU (Papineni et al., 2002) and chrF (Popović, 2015), through nltk."""

from collections.abc import Sequence

from nltk.tokenize import wordpunct_tokenize
from nltk.translate.bleu_score import SmoothingFunction, corpus_bleu
from nltk.translate.chrf_score import corpus_chrf

CHRF_BETA = 2  # recall counts so much more than precision, as is usual for chrF


def quality(texts: Sequence[str], references: Sequence[str | None]) -> dict[str, float]:
    """Scores from 0 to 100 over all texts together; none where a text has no reference.

    BLEU goes up to four words, which are runs of letters and digits, or of other characters but spaces. It is not
    sacrebleu's to the last digit, whose words are cut by other rules.
    """
    known = [reference for reference in references if reference is not None]
    if not texts or len(known) < len(texts):
        return {}
    words = [wordpunct_tokenize(text) for text in texts]
    expected = [[wordpunct_tokenize(reference)] for reference in known]
    # Without smoothing a corpus without one common group of four words would score 0, however many threes there are.
    bleu = corpus_bleu(expected, words, smoothing_function=SmoothingFunction().method1)
    return {"quality/bleu": 100 * bleu, "quality/chrf": 100 * corpus_chrf(known, list(texts), beta=CHRF_BETA)}
