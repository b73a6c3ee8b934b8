"""Prompt lookup copies the continuation of an earlier match."""

import numpy as np
import pytest
import torch

from drafters.prompt_lookup import PromptLookup
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences

CPU = torch.device("cpu")


def build(max_ngram: int = 3, min_ngram: int = 1, match: str = "last") -> PromptLookup:
    return PromptLookup(None, max_ngram=max_ngram, min_ngram=min_ngram, match=match)


def rows(*prompts: list[int], width: int = 400) -> Sequences:
    return Sequences.from_prompts(list(prompts), width=width, device=CPU)


def propose(drafter: PromptLookup, sequences: Sequences, gamma: int) -> list[list[int]]:
    """Offered tokens of every row."""
    draft = drafter.propose(sequences, gamma, torch.empty(sequences.num_rows, 0, dtype=torch.float64))
    assert draft.scheme is SamplingScheme.ONE_HOT and draft.probs is None
    deepest = max(draft.offered_depth.tolist())
    assert draft.tokens.shape == draft.valid.shape == (sequences.num_rows, deepest) and deepest <= gamma
    assert (draft.valid.long().diff(dim=1) <= 0).all()
    return [draft.tokens[row, : draft.offered_depth[row]].tolist() for row in range(sequences.num_rows)]


def start(drafter: PromptLookup, *prompts: list[int]) -> Sequences:
    sequences = rows(*prompts)
    drafter.begin(sequences, None, Sampling())
    return sequences


def searched(text: list[int], gamma: int, max_ngram: int, min_ngram: int, match: str) -> list[int]:
    """Draft by a search of the whole text."""
    for size in range(max_ngram, min_ngram - 1, -1):
        places = [end for end in range(size, len(text)) if text[end - size : end] == text[len(text) - size :]]
        if places:
            place = places[-1 if match == "last" else 0]
            longer = list(text)
            for _ in range(gamma):
                longer.append(longer[place])
                place += 1
            return longer[len(text) :]
    return []


@pytest.mark.parametrize("match", ["last", "first"])
@pytest.mark.parametrize(("max_ngram", "min_ngram"), [(1, 1), (3, 1), (4, 2), (3, 3)])
def test_equals_a_search_of_the_whole_text(max_ngram: int, min_ngram: int, match: str) -> None:
    generator = np.random.default_rng(0)
    drafter = build(max_ngram, min_ngram, match)
    texts = [generator.integers(0, 4, size=size).tolist() for size in (1, 2, 9)]
    sequences = start(drafter, *texts)
    offered = 0
    for _ in range(12):
        proposals = propose(drafter, sequences, gamma=4)
        for text, proposal in zip(texts, proposals, strict=True):
            assert proposal == searched(text, 4, max_ngram, min_ngram, match)
            offered += len(proposal)
        new, counts = generator.integers(0, 4, size=(3, 30)), generator.integers(0, 31, size=3)
        sequences.commit(torch.tensor(new), torch.tensor(counts))
        for text, tokens, count in zip(texts, new.tolist(), counts.tolist(), strict=True):
            text += tokens[:count]
    assert offered


def test_longest_suffix_wins_and_match_decides_among_its_places() -> None:
    two_places = [1, 2, 3, 7, 9, 2, 3, 8, 5, 2, 3]
    longer_is_older = [1, 2, 3, 7, 3, 8, 1, 2, 3]
    for match, text, expected in (
        ("last", two_places, [8, 5]),
        ("first", two_places, [7, 9]),
        ("last", longer_is_older, [7, 3]),
    ):
        drafter = build(match=match)
        assert propose(drafter, start(drafter, text), gamma=2) == [expected]


def test_a_copy_goes_on_with_what_it_copied() -> None:
    drafter = build()
    assert propose(drafter, start(drafter, [5, 6, 5]), gamma=5) == [[6, 5, 6, 5, 6]]
    assert propose(drafter, start(drafter, [5, 5]), gamma=3) == [[5, 5, 5]]


@pytest.mark.parametrize("prompt", [[3], [1, 2, 3], [1, 1, 2]])
def test_a_suffix_does_not_find_itself(prompt: list[int]) -> None:
    drafter = build()
    assert propose(drafter, start(drafter, prompt), gamma=3) == [[]]


def test_an_ngram_may_be_longer_than_any_text() -> None:
    """Found by fuzzing: lookups of every size up to max_ngram never ended."""
    drafter = build(max_ngram=10**20)
    sequences = start(drafter, [1, 2, 3, 1, 2], [1, 2, 3] * 8 + [1, 2])
    assert propose(drafter, sequences, 3) == [[3, 1, 2], [3, 1, 2]]


def test_drafts_repeat_and_skipped_rounds_are_caught_up() -> None:
    drafter = build()
    sequences = start(drafter, [1, 2, 3, 4], [4])
    assert propose(drafter, sequences, 3) == propose(drafter, sequences, 3) == [[], []]
    sequences.commit(torch.tensor([[1, 9, 9], [5, 6, 4]]), torch.tensor([1, 3]))
    sequences.commit(torch.tensor([[2, 9], [9, 9]]), torch.tensor([1, 0]))
    expected = [[3, 4, 1], [5, 6, 4]]
    assert propose(drafter, sequences, 3) == propose(drafter, sequences, 3) == expected


def test_begin_forgets() -> None:
    drafter = build()
    propose(drafter, start(drafter, [1, 2, 3, 1, 2]), gamma=2)
    assert propose(drafter, start(drafter, [1, 2], [7, 1]), gamma=2) == [[], []]


def test_rows_do_not_interact() -> None:
    texts = [[1, 2, 3, 1], [2], [3, 1, 3, 3]]
    drafter = build()
    together = propose(drafter, start(drafter, *texts), gamma=3)
    assert together == [propose(drafter, start(drafter, text), gamma=3)[0] for text in texts]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"max_ngram": 0}, "^max_ngram is "),
        ({"min_ngram": 0}, "^min_ngram is "),
        ({"min_ngram": 4}, "^max_ngram is "),
        ({"min_ngram": True}, "^min_ngram is "),
        ({"match": "best"}, "^match is "),
    ],
)
def test_bad_settings_name_their_key(options: dict, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        build(**options)
