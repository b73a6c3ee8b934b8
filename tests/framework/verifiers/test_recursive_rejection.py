"""Recursive rejection: examples by hand, plain Python, and the gain of draws without replacement."""

import pytest
import torch

from framework.conformance.enumeration import TREES, chains, every_draft, expected_tokens, target_rows, total_variation
from framework.conformance.enumeration import output_distribution as distribution_of_output
from framework.conformance.enumeration import target_distribution as distribution_of_target
from framework.conformance.toy_distributions import Tables, logits_of, random_tables
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling

PLAIN = Sampling()
STOPS = [torch.arange(3**i) % 4 != 1 for i in range(3)]  # some prefixes offer no node
RULE = RecursiveRejection()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens_per_round(p: Tables, q: Tables, parent: list[int], scheme: SamplingScheme) -> float:
    draft, weights = every_draft(q, parent=parent, scheme=scheme)
    return expected_tokens(RULE, logits_of(p), draft, weights, PLAIN)


def table(*scheme: float) -> torch.Tensor:
    return torch.tensor([scheme], dtype=torch.float64)


def test_independent_siblings_may_miss_the_same_token_twice():
    """With p = (1, 0) and q = (1/2, 1/2), two independent siblings miss in 1 of 4 rounds.

    Without replacement, one of the two is always accepted.
    """
    p, q = [table(1, 0), torch.full((2, 2), 0.5).double()], [table(0.5, 0.5)]
    assert tokens_per_round(p, q, [-1, -1], SamplingScheme.IID) == pytest.approx(1.75, abs=1e-15)
    assert tokens_per_round(p, q, [-1, -1], SamplingScheme.WITHOUT_REPLACEMENT) == pytest.approx(2, abs=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_as_many_siblings_as_tokens_cover_them_all(seed):
    """Without replacement, siblings that exhaust q's support always have one accepted."""
    p, q = random_tables("random", 4, 1, seeded(seed))
    assert tokens_per_round(p, q, [-1] * 4, SamplingScheme.WITHOUT_REPLACEMENT) == pytest.approx(2, abs=1e-12)
    assert tokens_per_round(p, q, [-1] * 4, SamplingScheme.IID) < 2 - 1e-3


@pytest.mark.parametrize("scheme", [SamplingScheme.IID, SamplingScheme.WITHOUT_REPLACEMENT])
@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint"])
def test_its_distributions_are_those_of_the_tests_one_by_one(kind, scheme):
    """Siblings at one depth in plain Python; a repeated token counts at its first node."""
    p, q = random_tables(kind, 4, 1, seeded(7))
    draft, _ = every_draft(q, parent=[-1, -1, -1], scheme=scheme)
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = RULE.stop_probs(target, draft)
    after_all = RULE.next_token_probs(target, draft, torch.zeros(len(draft.tokens), dtype=torch.int64))
    for row, tokens in enumerate(draft.tokens.tolist()):
        r, d, reach, stops = p[0][0].tolist(), q[0][0].tolist(), 1.0, [0.0] * 4
        for node, x in enumerate(tokens):
            if not draft.valid[row, node]:  # no token was left to draw
                continue
            keep = min(1.0, r[x] / d[x])
            stops[tokens.index(x) + 1] += reach * keep
            reach *= 1 - keep
            rest = [max(0.0, a - b) for a, b in zip(r, d, strict=True)]
            r = [mass / sum(rest) for mass in rest] if sum(rest) else r
            if scheme is SamplingScheme.WITHOUT_REPLACEMENT:
                d = [0.0 if token == x else mass for token, mass in enumerate(d)]
                d = [mass / (sum(d) or 1) for mass in d]
        stops[0] = reach
        assert stop_probs[row].tolist() == pytest.approx(stops, abs=1e-12)
        if reach > 1e-9:
            assert after_all[row].tolist() == pytest.approx(r, abs=1e-9)


def test_on_a_chain_it_is_speculative_sampling():
    p, q = random_tables("random", 3, 3, seeded(0))
    draft, weights = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID, offered=STOPS)
    target = target_rows(logits_of(p), draft, PLAIN)
    assert torch.allclose(RULE.stop_probs(target, draft), SpeculativeSampling().stop_probs(target, draft), atol=1e-15)
    for row in range(4):
        stop = torch.full((len(weights),), row)
        ours, theirs = (rule.next_token_probs(target, draft, stop) for rule in (RULE, SpeculativeSampling()))
        assert torch.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("parent", [chains(3, 2), chains(4, 1), [-1, -1, 0, 1, 1]], ids=str)
def test_chains_that_agree_are_gone_on_with_together(parent):
    """More chains than in the standard set; the first of equal nodes takes all children."""
    for seed in range(3):
        p, q = random_tables("random", 3, 2, seeded(seed))
        draft, weights = every_draft(q, parent=parent, scheme=SamplingScheme.IID)
        emitted = distribution_of_output(RULE, logits_of(p), draft, weights, PLAIN)
        assert total_variation(emitted, distribution_of_target(logits_of(p), PLAIN)) <= 1e-12
        stop_probs = RULE.stop_probs(target_rows(logits_of(p), draft, PLAIN), draft)
        repeats = draft.tokens[:, 1] == draft.tokens[:, 0]
        assert repeats.any() and (stop_probs[repeats, 2] == 0).all()
        if 1 in parent:
            assert (stop_probs[repeats, parent.index(1) + 1] > 0).any()


def test_without_replacement_keeps_more_than_with():
    """Over a tenth of a token on average; single tables may favour replacement."""
    gained = []
    for seed in range(40):
        p, q = random_tables("random", 3, 2, seeded(seed))
        without, independent = (
            tokens_per_round(p, q, TREES[2], scheme)
            for scheme in (SamplingScheme.WITHOUT_REPLACEMENT, SamplingScheme.IID)
        )
        gained.append(without - independent)
    assert sum(gained) / len(gained) > 0.1
