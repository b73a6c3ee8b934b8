"""Suffix lookup copies after the longest repeated suffix: compared with an exhaustive search."""

import time

import numpy as np
import pytest
import torch

from drafters.suffix_lookup import SuffixLookup
from framework.conformance import check_drafter
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.drafting.suffix_automaton import SuffixAutomaton
from framework.gamma_policies.fixed import Fixed
from framework.prompts.prompt_source import Text
from framework.verifiers.speculative_sampling import SpeculativeSampling

CPU = torch.device("cpu")


def build(target=None, **options) -> SuffixLookup:
    return SuffixLookup(target, **({"min_match": 1, "factor": None, "history": 0, "corpus": None} | options))


def propose(drafter: SuffixLookup, sequences: Sequences, gamma: int) -> list[list[int]]:
    """Offered tokens of every row."""
    draft = drafter.propose(sequences, gamma, torch.empty(sequences.num_rows, 0, dtype=torch.float64))
    assert draft.scheme is SamplingScheme.ONE_HOT and (draft.valid.long().diff(dim=1) <= 0).all()
    return [draft.tokens[row, : draft.offered_depth[row]].tolist() for row in range(sequences.num_rows)]


def begun(drafter: SuffixLookup, *prompts) -> Sequences:
    sequences = Sequences.from_prompts(list(prompts), width=80, device=CPU)
    drafter.begin(sequences, None, Sampling())
    return sequences


def searched(text: list[int], others: list[list[list[int]]], gamma: int, source: list[int] | None = None) -> list[int]:
    """Search every suffix at every place: own documents first, then the other collections."""
    for size in range(len(text), 0, -1):
        suffix = text[-size:]
        for documents in ([source or [], text], *others):
            for document in documents:
                for end in range(size, len(document)):
                    if document[end - size : end] == suffix:
                        if document is not text:
                            return document[end : end + gamma]
                        longer = list(text)
                        for place in range(end, end + gamma):
                            longer.append(longer[place])
                        return longer[len(text) :]
    return []


@pytest.mark.parametrize("vocabulary", [2, 3, 6])
def test_drafts_equal_those_of_a_search_of_everything(vocabulary: int) -> None:
    """Rows with sources, and a history of other prompts' outputs."""
    dice = np.random.default_rng(vocabulary)
    drafter = build(history=8)
    history: list[list[int]] = []
    offered = 0
    for generation in range(5):
        sources = [dice.integers(0, vocabulary, size=size).tolist() for size in (7, 3)]
        texts = [[vocabulary + generation], dice.integers(0, vocabulary, size=4).tolist()]  # prompts never repeat
        prompts = [list(text) for text in texts]
        sequences = begun(drafter, *map(Conditioned, sources, prompts))
        for _ in range(12):
            drafts = propose(drafter, sequences, gamma=4)
            for source, text, draft in zip(sources, texts, drafts, strict=True):
                assert draft == searched(text, [history], 4, source), (source, text, history)
                offered += len(draft)
            new, counts = dice.integers(0, vocabulary, size=(2, 4)), dice.integers(0, 5, size=2)
            sequences.commit(torch.tensor(new), torch.tensor(counts))
            drafter.learn(sequences)
            for text, tokens, count in zip(texts, new.tolist(), counts.tolist(), strict=True):
                text += tokens[:count]
        history += [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
    assert offered


class Words:
    """A corpus of two texts in the tiny target's alphabet."""

    def texts(self):
        yield Text("one", "", "abcab dcba")
        yield Text("two", "", "dcbb abcd")


def test_a_corpus_is_copied_from_within_its_documents() -> None:
    target = tiny_target()
    documents = [target.tokenizer(text.text, add_special_tokens=False)["input_ids"] for text in Words().texts()]
    drafter = build(target, corpus=Words())
    for text in (documents[0][:4], documents[1][:3], documents[0][-2:], documents[1][-2:]):
        assert propose(drafter, begun(drafter, text), 5) == [searched(text, [documents], 5)]


def test_a_match_drafts_so_many_times_its_length() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3]
    for factor, length in ((None, 6), (1, 2), (1.25, 3), (0.5, 1)):
        drafter = build(factor=factor)
        assert propose(drafter, begun(drafter, text), 6) == [[4, 5, 6, 7, 8, 9][:length]]
    drafter = build(min_match=3)
    assert propose(drafter, begun(drafter, text), 6) == [[]]


def test_a_prompt_is_not_helped_by_what_it_gave_before() -> None:
    """A prompt's outputs help only other prompts; the oldest outputs are dropped first."""
    drafter = build(history=1)

    def decode(prompt: list[int], output: list[int]) -> list[int]:
        sequences = begun(drafter, prompt)
        sequences.commit(torch.tensor([output]), torch.tensor([len(output)]))
        drafter.learn(sequences)
        return propose(drafter, sequences, 3)[0]

    assert decode([1, 2], [11, 12, 13]) == []
    for _ in range(2):
        assert decode([1, 2], [11]) == []
    assert decode([3], [11]) == []  # the last output of [1, 2] is 11 alone
    assert decode([1, 2], [11, 12, 13]) == []
    assert decode([4], [11]) == [12, 13]
    assert decode([5], [21, 22]) == [] and decode([6], [31]) == [] and decode([7], [41]) == []
    assert decode([8], [12]) == []


@pytest.mark.slow
def test_the_contract_holds_and_greedy_tokens_stay_with_a_history() -> None:
    for history in (0, 8):
        report = check_drafter(lambda target, history=history: build(target, history=history, factor=2), samples=2000)
        report.require()
        assert ("it learnt in between" in str(report)) == (history > 0)
    target, stopping = tiny_target(), Stopping(max_new_tokens=30)
    greedy = Sampling(temperature=0)
    engine = Engine(
        target=target,
        drafter=build(target, history=4),
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=4),
        sampling=greedy,
    )
    plain = Autoregressive(target=target, sampling=greedy)
    for prompts in ([[5, 6, 7, 5], [9]], [[3, 4], [5, 6, 7]], [[5, 6, 7, 5], [2]]):
        expected = plain.generate(prompts, stopping=stopping, seeds=[0, 1]).tokens
        assert engine.generate(prompts, stopping=stopping, seeds=[0, 1]).tokens == expected


def test_taking_in_a_token_costs_the_same_however_long_the_text_is() -> None:
    """Worst case of substring tables: one token repeated, then random tokens.

    Ten times the tokens may take forty times as long on a busy machine; rescanning every suffix takes a hundred times.
    """
    dice = np.random.default_rng(0)

    def seconds(size: int) -> float:
        best = float("inf")
        for _ in range(3):
            automaton, start = SuffixAutomaton(), time.process_time()
            for token in [1] * size + dice.integers(0, 3, size=size).tolist():
                automaton.append(token)
                automaton.continued(automaton.earlier())
            best = min(best, time.process_time() - start)
        return best

    assert seconds(20_000) < 40 * seconds(2000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_match": 0}, r"^min_match is 0; allowed: a whole number >= 1"),
        ({"history": -1}, r"^history is -1; allowed: a whole number >= 0"),
        ({"factor": 0}, r"^factor is 0; allowed: a number > 0, or null"),
    ],
)
def test_a_wrong_option_is_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(**options)
