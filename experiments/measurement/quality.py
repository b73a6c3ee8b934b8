"""Output quality against references: BLEU (Papineni et al., 2002) and chrF (Popović, 2015), computed by nltk."""

from collections.abc import Sequence

CHRF_BETA = 2  # weight of recall against precision; 2 is the usual choice for chrF


def quality(texts: Sequence[str], references: Sequence[str | None]) -> dict[str, float]:
    """Corpus BLEU and chrF from 0 to 100.

    The result is empty if there are no texts or one has no reference.

    BLEU uses n-grams up to 4 over words: runs of letters and digits, or runs of other non-space characters. It differs
    slightly from sacrebleu, which tokenises differently.
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
    return {"quality/bleu": 100 * bleu, "quality/chrf": 100 * corpus_chrf(known, list(texts), beta=CHRF_BETA)}
