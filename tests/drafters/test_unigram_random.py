"""The fixed distributions of unigram drafters."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import chisquare

from drafters.unigram_random import UnigramRandom
from framework.core.draft import Draft, SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.prompts.prompt_source import Text

V = 6
CPU = torch.device("cpu")


class Documents:
    """A prompt source of digits, one token each."""

    def __init__(self, *documents: str):
        self.documents = documents

    def texts(self) -> Iterator[Text]:
        return (Text(name=str(i), category="", text=text) for i, text in enumerate(self.documents))


def digits(texts: list[str], *, add_special_tokens: bool, verbose: bool) -> dict[str, list[list[int]]]:
    return {"input_ids": [[int(digit) for digit in text] for text in texts]}


TARGET = SimpleNamespace(vocabulary_size=V, tokenizer=digits, device=CPU, model=SimpleNamespace(text_start=[]))
CORPUS = Documents("0112", "", "2223")
FREQUENCIES = torch.tensor([1, 2, 4, 1, 0, 0]) / 8


def propose(drafter: UnigramRandom, sampling: Sampling, num_rows: int = 3, gamma: int = 4) -> Draft:
    sequences = Sequences.from_prompts([[1]] * num_rows, width=8, device=CPU)
    drafter.begin(sequences, None, sampling)
    generator = torch.Generator().manual_seed(0)
    uniforms = torch.rand(num_rows, drafter.num_uniforms(gamma), dtype=torch.float64, generator=generator)
    draft = drafter.propose(sequences, gamma, uniforms)
    assert draft.tokens.shape == (num_rows, gamma) and draft.valid.all()
    again = drafter.propose(sequences, gamma, uniforms)
    assert torch.equal(draft.tokens, again.tokens)
    return draft


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0), Sampling(temperature=0.5, top_k=2)])
def test_uniform_is_uniform_under_any_sampling(sampling: Sampling) -> None:
    draft = propose(UnigramRandom(TARGET, distribution="uniform", corpus=None), sampling)
    assert draft.scheme is SamplingScheme.IID and draft.probs.dtype == torch.float32
    assert torch.equal(draft.probs, torch.full((3, 4, V), 1 / V))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5), Sampling(top_k=2), Sampling(top_p=0.5)])
def test_corpus_frequencies_are_standardised_like_the_target(sampling: Sampling) -> None:
    draft = propose(UnigramRandom(TARGET, distribution="corpus", corpus=CORPUS), sampling)
    assert draft.scheme is SamplingScheme.IID and draft.probs.dtype == torch.float32
    assert torch.allclose(draft.probs, sampling.probs(FREQUENCIES.log()).expand(3, 4, -1), atol=1e-6)
    if sampling == Sampling():
        assert torch.allclose(draft.probs[0, 0], FREQUENCIES, atol=1e-6)


def test_corpus_at_temperature_zero_is_its_most_frequent_token() -> None:
    drafter = UnigramRandom(TARGET, distribution="corpus", corpus=CORPUS)
    draft = propose(drafter, Sampling(temperature=0))
    assert draft.scheme is SamplingScheme.ONE_HOT and draft.probs is None
    assert (draft.tokens == 2).all()
    # The next generation may sample again.
    assert torch.allclose(propose(drafter, Sampling()).probs[0, 0], FREQUENCIES, atol=1e-6)


@pytest.mark.parametrize(("distribution", "corpus"), [("uniform", None), ("corpus", CORPUS)])
def test_tokens_follow_their_distribution(distribution: str, corpus: Documents | None) -> None:
    draft = propose(UnigramRandom(TARGET, distribution=distribution, corpus=corpus), Sampling(), 10_000, 2)
    probs = draft.probs[0, 0].double()
    # Both nodes and their pair: independent draws. False-alarm rate 1e-7 each.
    pairs = draft.tokens[:, 0] * V + draft.tokens[:, 1]
    for tokens, expected in (
        (draft.tokens[:, 0], probs),
        (draft.tokens[:, 1], probs),
        (pairs, probs.outer(probs).flatten()),
    ):
        observed = torch.bincount(tokens, minlength=len(expected))
        assert not observed[expected == 0].any()
        possible = expected > 0
        assert chisquare(observed[possible], expected[possible] / expected.sum() * len(tokens)).pvalue > 1e-7


@pytest.mark.parametrize(
    ("distribution", "corpus", "key"),
    [
        ("zipf", None, "^distribution is "),
        ("corpus", None, "^distribution is 'corpus', and corpus is null"),
        ("uniform", CORPUS, "^distribution is 'uniform', and corpus is not null"),
        ("corpus", Documents("06"), "^corpus is "),
        ("corpus", Documents(), "^corpus is "),
    ],
)
def test_bad_settings_name_their_key(distribution: str, corpus: Documents | None, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        UnigramRandom(TARGET, distribution=distribution, corpus=corpus)
