"""The n-gram drafter against nltk, and its draws against their distribution."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nltk.lm import MLE, Laplace, NgramCounter, Vocabulary, WittenBellInterpolated
from nltk.util import everygrams
from scipy.stats import chisquare

from drafters.ngram import SMOOTHINGS, NGram
from framework.conformance import check_drafter
from framework.core.draft import Draft, SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.drafting.ngram_tables import tokenised_documents
from framework.prompts.prompt_source import Text

V = 7
CPU = torch.device("cpu")
DOCUMENTS = ["0123401230123", "45", "", "0124", "5", "00001", "34012340"]  # id 6 never occurs


class Documents:
    """A prompt source whose texts are digits, one token each."""

    def __init__(self, documents: list[str]):
        self.documents = documents

    def texts(self) -> Iterator[Text]:
        return (Text(name=str(i), category="", text=text) for i, text in enumerate(self.documents))


def digits(texts: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
    return {"input_ids": [[int(digit) for digit in text] for text in texts]}


TARGET = SimpleNamespace(vocabulary_size=V, tokenizer=digits, device=CPU, model=SimpleNamespace(text_start=[]))


def build(
    order: int,
    smoothing: str,
    learn_from_context: bool = False,
    documents: list[str] | None = DOCUMENTS,
    top_k: int | None = None,
) -> NGram:
    corpus = None if documents is None else Documents(documents)
    options = {"order": order, "smoothing": smoothing, "learn_from_context": learn_from_context, "corpus": corpus}
    return NGram(TARGET, **options, top_k=top_k)


def rows(*prompts: list[int], width: int = 40) -> Sequences:
    return Sequences.from_prompts(list(prompts), width=width, device=CPU)


def propose(drafter: NGram, sequences: Sequences, gamma: int, sampling: Sampling | None = None, seed: int = 0) -> Draft:
    drafter.begin(sequences, None, sampling or Sampling())
    generator = torch.Generator().manual_seed(seed)
    num = (sequences.num_rows, drafter.num_uniforms(gamma))
    return drafter.propose(sequences, gamma, torch.rand(num, dtype=torch.float64, generator=generator))


def nltk_probs(order: int, smoothing: str, documents: list[list[int]], text: list[int]) -> np.ndarray:
    """nltk's score of every token after a text, by the drafter's smoothing."""
    counter = NgramCounter([list(everygrams(tokens, max_len=order)) for tokens in documents])
    # nltk counts its unknown label as a word; the last id stands for it.
    vocabulary = Vocabulary(range(V - 1), unk_label=V - 1)
    context = tuple(text[max(len(text) - order + 1, 0) :]) if order > 1 else ()
    if smoothing == "laplace":
        model = Laplace(order, vocabulary=vocabulary, counter=counter)
    elif smoothing == "witten_bell":
        model = WittenBellInterpolated(order, vocabulary=vocabulary, counter=counter)
    else:
        model = MLE(order, vocabulary=vocabulary, counter=counter)
        while context and not counter[context]:
            context = context[1:]
    return np.array([model.unmasked_score(word, context) for word in range(V)])


def random_documents(generator: np.random.Generator) -> list[str]:
    sizes = generator.integers(0, 40, size=5)
    return ["".join(str(int(token)) for token in generator.zipf(1.7, size) % (V - 1)) for size in sizes] + ["012"]


@pytest.mark.parametrize("learn_from_context", [False, True])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_distribution_equals_nltk(order: int, smoothing: str, learn_from_context: bool) -> None:
    generator = np.random.default_rng(order)
    for documents in (DOCUMENTS, random_documents(generator), random_documents(generator)):
        # Seen, unseen and unknown contexts, texts shorter than the order, and the drafted continuations.
        texts = [[0, 1, 2], [3], [6], [0, 6], [6, 6, 6, 6, 6], [5, 5, 0, 1], [0, 1, 2, 3, 4, 0, 1]]
        texts += [generator.integers(0, V, size=size).tolist() for size in range(1, 12)]
        drafter = build(order, smoothing, learn_from_context, documents)
        draft = propose(drafter, rows(*texts), gamma=6, seed=order)
        corpus = [[int(digit) for digit in text] for text in documents]
        for row, text in enumerate(texts):
            known = [*corpus, text] if learn_from_context else corpus
            for node in range(draft.num_nodes):
                before = text + draft.tokens[row, :node].tolist()
                expected = nltk_probs(order, smoothing, known, before)
                np.testing.assert_allclose(draft.probs[row, node], expected, rtol=0, atol=1e-6)
        np.testing.assert_allclose(draft.probs.sum(2), 1, rtol=0, atol=1e-5)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_without_a_corpus_only_the_text_is_counted(smoothing: str) -> None:
    text = [1, 2, 1, 2, 1]
    draft = propose(build(3, smoothing, learn_from_context=True, documents=None), rows(text), gamma=1)
    np.testing.assert_allclose(draft.probs[0, 0], nltk_probs(3, smoothing, [text], text), rtol=0, atol=1e-6)


def test_ngrams_do_not_cross_documents() -> None:
    draft = propose(build(2, "longest_context", documents=["01", "23"]), rows([1]), gamma=1)
    assert draft.probs[0, 0].tolist() == [0.25, 0.25, 0.25, 0.25, 0, 0, 0]


@pytest.mark.slow
def test_tokens_follow_their_distribution() -> None:
    num_rows = 20_000
    draft = propose(build(3, "witten_bell"), rows(*[[0, 1]] * num_rows), gamma=2)
    assert draft.scheme is SamplingScheme.IID
    # False-alarm rate 1e-7 for each of the two tests.
    probs = draft.probs[0, 0].double()
    observed = torch.bincount(draft.tokens[:, 0], minlength=V)
    assert not observed[probs == 0].any()
    expected = (probs / probs.sum() * num_rows)[probs > 0]
    assert chisquare(observed[probs > 0], expected).pvalue > 1e-7
    after = draft.tokens[:, 0] == 2
    probs = draft.probs[after][0, 1].double()
    observed = torch.bincount(draft.tokens[after, 1], minlength=V)
    expected = (probs / probs.sum() * after.sum())[probs > 0]
    assert chisquare(observed[probs > 0], expected).pvalue > 1e-7


def test_temperature_zero_chooses_the_likeliest_token() -> None:
    texts = [[0, 1], [6], [3, 4, 0]]
    sampled, greedy = (
        propose(build(3, "witten_bell"), rows(*texts), gamma=4, sampling=Sampling(temperature=temperature))
        for temperature in (1.0, 0.0)
    )
    assert greedy.scheme is SamplingScheme.ONE_HOT and greedy.probs is None
    assert torch.equal(greedy.tokens[:, 0], sampled.probs[:, 0].argmax(1))
    assert greedy.tokens[0].tolist() == [2, 3, 4, 0]


@pytest.mark.parametrize("learn_from_context", [False, True])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("top_k", [1, 3, V + 1])
def test_with_top_k_only_the_likeliest_tokens_are_drawn(top_k: int, smoothing: str, learn_from_context: bool) -> None:
    generator = np.random.default_rng(top_k)
    for documents in (DOCUMENTS, random_documents(generator), None)[: 2 + learn_from_context]:
        texts = [[0, 1, 2], [3], [6], [6, 5, 6, 5], [5, 5, 0, 1], [0, 1, 2, 3, 4, 0, 1]]
        drafter = build(3, smoothing, learn_from_context, documents, top_k)
        draft = propose(drafter, rows(*texts), gamma=4, seed=top_k)
        assert draft.support.shape == (len(texts), 4, min(top_k, V))
        corpus = [[int(digit) for digit in text] for text in documents or []]
        for row, text in enumerate(texts):
            known = [*corpus, text] if learn_from_context else corpus
            for node in range(draft.num_nodes):
                everything = nltk_probs(3, smoothing, known, text + draft.tokens[row, :node].tolist())
                support = draft.support[row, node].numpy()
                assert len(set(support)) == len(support)
                kept = everything[support]
                np.testing.assert_allclose(kept.sum(), np.sort(everything)[::-1][:top_k].sum(), rtol=0, atol=1e-9)
                np.testing.assert_allclose(draft.probs[row, node], kept / kept.sum(), rtol=0, atol=1e-6)
                assert draft.tokens[row, node] in support[kept > 0]


def test_with_top_k_temperature_and_truncation_apply_to_the_kept_tokens() -> None:
    texts = [[0, 1], [3, 4, 0]]
    plain, changed = (
        propose(build(3, "laplace", top_k=4), rows(*texts), gamma=1, sampling=setting)
        for setting in (Sampling(), Sampling(temperature=0.5, top_p=0.8))
    )
    assert torch.equal(plain.support, changed.support)
    expected = Sampling(temperature=0.5, top_p=0.8).probs(plain.probs.log())
    torch.testing.assert_close(changed.probs, expected, rtol=0, atol=1e-6)
    whole, kept = (
        propose(build(3, "witten_bell", top_k=top_k), rows(*texts), gamma=4, sampling=Sampling(temperature=0))
        for top_k in (None, 2)
    )
    assert kept.support is None and torch.equal(kept.tokens, whole.tokens)


@pytest.mark.slow
def test_with_top_k_the_contract_holds() -> None:
    options = {"order": 3, "smoothing": "witten_bell", "learn_from_context": True, "corpus": None}
    check_drafter(lambda target: NGram(target, **options, top_k=3)).require()


def test_ties_go_to_the_smallest_id() -> None:
    draft = propose(
        build(2, "longest_context", documents=["31", "32"]), rows([3]), gamma=1, sampling=Sampling(temperature=0)
    )
    assert draft.tokens.tolist() == [[1]]


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.5), Sampling(top_k=2), Sampling(top_p=0.6, min_p=0.1)])
def test_distribution_is_standardised_like_the_target(sampling: Sampling) -> None:
    plain, changed = (
        propose(build(3, "laplace"), rows([0, 1], [4]), gamma=1, sampling=setting).probs
        for setting in (Sampling(), sampling)
    )
    assert torch.allclose(changed, sampling.probs(plain.log()), atol=1e-6)
    assert not torch.allclose(changed, plain, atol=1e-3)


@pytest.mark.parametrize("learn_from_context", [False, True])
def test_a_draft_depends_on_the_committed_tokens_only(learn_from_context: bool) -> None:
    texts = [[0, 1, 2, 3], [4], [2, 2, 2, 2, 2, 2, 2]]
    drafter = build(4, "witten_bell", learn_from_context)
    sequences = rows(*texts)
    first = propose(drafter, sequences, gamma=3)
    again = propose(drafter, sequences, gamma=3)
    assert torch.equal(first.tokens, again.tokens) and torch.equal(first.probs, again.probs)

    # Skipped rounds, rows of different growth, and random tokens after the committed ones.
    sequences.commit(torch.tensor([[0, 1, 3], [5, 6, 1], [0, 0, 4]]), torch.tensor([3, 1, 0]))
    sequences.commit(torch.tensor([[4, 4], [4, 4], [4, 4]]), torch.tensor([0, 2, 0]))
    texts = [[0, 1, 2, 3, 0, 1, 3], [4, 5, 4, 4], texts[2]]
    grown, fresh = (propose(drafter, state, gamma=3) for state in (sequences, rows(*texts, width=12)))
    assert torch.equal(grown.tokens, fresh.tokens) and torch.equal(grown.probs, fresh.probs)

    # Another batch has no effect.
    propose(drafter, rows([6, 6, 6, 6], [6, 5, 6, 5]), gamma=3)
    assert torch.equal(propose(drafter, sequences, gamma=3).probs, grown.probs)


@pytest.mark.parametrize("learn_from_context", [False, True])
@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_rows_do_not_interact(smoothing: str, learn_from_context: bool) -> None:
    texts = [[0, 1, 2, 0, 1], [4], [6, 6, 6, 5]]
    drafter = build(3, smoothing, learn_from_context)
    uniforms = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = rows(*texts)
    drafter.begin(together, None, Sampling())
    batch = drafter.propose(together, 4, uniforms)
    for row, text in enumerate(texts):
        alone = rows(text, width=len(text))
        drafter.begin(alone, None, Sampling())
        single = drafter.propose(alone, 4, uniforms[row : row + 1])
        assert torch.equal(single.tokens[0], batch.tokens[row])
        assert torch.equal(single.probs[0], batch.probs[row])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"order": 0}, "^order is "),
        ({"order": 2.0}, "^order is "),
        ({"top_k": 0}, "^top_k is "),
        ({"smoothing": "kneser_ney"}, "^smoothing is "),
        ({"corpus": None}, "^learn_from_context is "),
        ({"corpus": Documents(["018"])}, "^corpus is "),
        ({"corpus": Documents([""])}, "^corpus is "),
    ],
)
def test_bad_settings_name_their_key(options: dict, key: str) -> None:
    good = {"order": 2, "smoothing": "laplace", "learn_from_context": False, "corpus": Documents(["01"])}
    with pytest.raises(ValueError, match=key):
        NGram(TARGET, **(good | options))


def test_answers_are_counted_where_the_target_has_an_encoder():
    """A target with an encoder writes answers, so the corpus's references are counted."""
    corpus = SimpleNamespace(texts=lambda: [Text("one", "", "012", reference="345")])
    with_encoder = SimpleNamespace(**(vars(TARGET) | {"model": SimpleNamespace(text_start=[0])}))
    for target, expected in ((TARGET, [0, 1, 2]), (with_encoder, [3, 4, 5])):
        assert [document.tolist() for document in tokenised_documents(corpus, target)] == [expected]
