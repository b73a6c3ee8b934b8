"""Long distributions: memory for one row at a time, and unchanged results."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from framework.core import sampling as standardising
from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.sampling import Sampling
from framework.drafting.chain_builder import ChainBuilder
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.tree_walk import TreeWalk

SETTINGS = [
    Sampling(temperature=0),
    Sampling(),
    Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.01),
]


@pytest.mark.parametrize("sampling", SETTINGS, ids=["greedy", "plain", "truncated"])
@pytest.mark.parametrize("entries", [1, 3 * 2 * 50, 10**6], ids=["row by row", "three rows", "at once"])
def test_probabilities_of_single_tokens_are_those_of_the_distributions(
    entries: int, sampling: Sampling, monkeypatch
) -> None:
    monkeypatch.setattr(standardising, "ENTRIES_AT_ONCE", entries)
    random = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 7, 50, generator=random)
    logits[1, 3] = torch.nan
    rows, tokens = torch.randint(7, (2, 20), generator=random), torch.randint(50, (2, 20), generator=random)
    tokens[:, ::2] = logits.nan_to_num().argmax(2).gather(1, rows)[:, ::2]
    found = sampling.prob_of(logits, rows, tokens)
    expected = sampling.probs(logits)[torch.arange(2).unsqueeze(1), rows, tokens]
    assert found.dtype == expected.dtype and torch.equal(found.isnan(), expected.isnan()) and found.isnan().any()
    assert torch.equal(found.nan_to_num(), expected.nan_to_num()) and (found > 0).any()


class Largest(TorchDispatchMode):
    """The largest number of entries among tensors created in this mode."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        is_new = isinstance(made, Tensor) and not any(
            isinstance(each, Tensor) and each.data_ptr() == made.data_ptr() for each in args
        )
        self.entries = max(self.entries, made.numel() if is_new else 0)
        return made


def verified(rule, draft: Draft, sampling: Sampling) -> int:
    """The largest tensor during verification of a draft, in entries."""
    logits = torch.randn(len(draft.tokens), draft.num_nodes + 1, 30_000, generator=torch.Generator().manual_seed(2))
    target, stop = TargetRows(logits.bfloat16(), draft, sampling), torch.zeros(len(draft.tokens), dtype=torch.int64)
    with Largest() as largest:
        rule.stop_probs(target, draft)
        rule.next_token_probs(target, draft, stop)
    return largest.entries


@pytest.mark.parametrize("sampling", SETTINGS, ids=["greedy", "plain", "truncated"])
def test_no_copy_of_all_distributions_is_made(sampling: Sampling, monkeypatch) -> None:
    monkeypatch.setattr(standardising, "ENTRIES_AT_ONCE", 1)
    tokens = torch.randint(30_000, (2, 8), generator=torch.Generator().manual_seed(3))
    chosen = Draft.chain(tokens, SamplingScheme.ONE_HOT)
    drawn = Draft.chain(tokens, SamplingScheme.IID, probs=torch.full((2, 8, 30_000), 1 / 30_000))
    few = Draft.chain(
        tokens, SamplingScheme.IID, probs=torch.full((2, 8, 3), 1 / 3), support=torch.stack([tokens] * 3, 2)
    )
    cases = [(SpeculativeSampling(), draft) for draft in (chosen, drawn, few)] + [(TreeWalk(), chosen)]
    for rule, draft in cases:
        assert verified(rule, draft, sampling) <= 2 * (30_000 + standardising.BLOCK)  # filled up to whole blocks
    monkeypatch.setattr(standardising, "ENTRIES_AT_ONCE", 10**9)  # control: all rows at once
    assert verified(SpeculativeSampling(), drawn, sampling) >= 2 * 9 * 30_000


def test_a_draft_from_few_tokens_holds_the_probabilities_of_those() -> None:
    chain = ChainBuilder(
        gamma=8,
        active=torch.ones(2).bool(),
        sampling=Sampling(),
        uniforms=torch.full((2, 8), 0.5, dtype=torch.float64),
        should_continue=None,
        top_k=20,
    )
    logits = torch.randn(2, 30_000, generator=torch.Generator().manual_seed(4))
    with Largest() as largest:
        while chain.add(logits):
            pass
        draft = chain.draft()
    assert draft.probs.shape == (2, 8, 20) and largest.entries == 2 * 8 * 20
    assert (draft.dense_probs(30_000) > 0).sum() == 2 * 8 * 20 and (draft.prob_of_tokens() > 0).all()
