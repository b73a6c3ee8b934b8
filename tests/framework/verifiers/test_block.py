"""Block verification against its algorithm test by test, and against token verification."""

from itertools import product

import pytest
import torch

from framework.conformance.enumeration import chains, every_draft, expected_tokens, target_rows
from framework.conformance.toy_distributions import KINDS, logits_of, random_supports, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.block import BlockVerification
from framework.verifiers.speculative_sampling import SpeculativeSampling

PLAIN = Sampling()
STOPS = [torch.arange(3**i) % 4 != 1 for i in range(3)]  # some prefixes offer no node


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def walked_through(target: TargetRows, draft: Draft, row: int) -> tuple[list[float], dict[int, list[float]]]:
    """Algorithm 2 for one draft in plain Python: probabilities of stops, and next-token distributions."""
    assert draft.probs is not None
    gamma = int(draft.valid[row].sum())
    p, q = target.all_probs[row].tolist(), draft.probs[row].tolist()
    tokens = draft.tokens[row].tolist()
    pi, chance = [1.0], [1.0]
    for i in range(1, gamma + 1):
        x = tokens[i - 1]
        pi.append(min(1.0, pi[-1] * p[i - 1][x] / q[i - 1][x]))
        if i < gamma:
            z = sum(max(0.0, pi[i] * a - b) for a, b in zip(p[i], q[i], strict=True))
            chance.append(z / (z + 1 - pi[i]) if z + 1 - pi[i] else 1.0)
        else:
            chance.append(pi[i])
    stops = [0.0] * (draft.num_nodes + 1)
    for outcome in product((False, True), repeat=gamma):
        probability = 1.0
        for succeeded, h in zip(outcome, chance[1:], strict=True):
            probability *= h if succeeded else 1 - h
        stops[max((i + 1 for i, succeeded in enumerate(outcome) if succeeded), default=0)] += probability
    follows = {gamma: p[gamma]}
    for tau in range(gamma):
        rest = [max(0.0, pi[tau] * a - b) for a, b in zip(p[tau], q[tau], strict=True)]
        if sum(rest) > 1e-9:
            follows[tau] = [mass / sum(rest) for mass in rest]
    return stops, follows


@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint", "one_hot_p"])
def test_its_distributions_are_those_of_the_tests_one_by_one(kind):
    p, q = random_tables(kind, 3, 3, seeded(0))
    draft, _ = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID, offered=STOPS)
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = BlockVerification().stop_probs(target, draft)
    next_token_probs = [
        BlockVerification().next_token_probs(target, draft, torch.full((len(draft.tokens),), row)) for row in range(4)
    ]
    for row in range(len(draft.tokens)):
        stops, follows = walked_through(target, draft, row)
        assert stop_probs[row].tolist() == pytest.approx(stops, abs=1e-12)
        for stop, probs in follows.items():
            assert next_token_probs[stop][row].tolist() == pytest.approx(probs, abs=1e-9)


def test_the_example_that_a_block_keeps_more():
    """p = (1/3, 2/3), q = (2/3, 1/3), gamma 2: by hand, 10/9 nodes by tokens, 11/9 as a block."""
    p = [torch.tensor([[1 / 3, 2 / 3]], dtype=torch.float64).expand(2**i, -1) for i in range(3)]
    q = [table.flip(1) for table in p[:2]]
    draft, weights = every_draft(q, parent=chains(1, 2), scheme=SamplingScheme.IID)
    for rule, kept in ((SpeculativeSampling(), 10 / 9), (BlockVerification(), 11 / 9)):
        assert expected_tokens(rule, logits_of(p), draft, weights, PLAIN) == pytest.approx(1 + kept, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_fewer_tokens_than_token_verification_on_the_same_drafts(kind):
    gained = 0.0
    for gamma, seed in product((1, 2, 3), range(10)):
        p, q = random_tables(kind, 3, gamma, seeded(seed))
        draft, weights = every_draft(q, parent=chains(1, gamma), scheme=SamplingScheme.IID)
        block, token = (
            expected_tokens(rule, logits_of(p), draft, weights, PLAIN)
            for rule in (BlockVerification(), SpeculativeSampling())
        )
        assert block >= token - 1e-12
        assert gamma > 1 or block == pytest.approx(token, abs=1e-12)
        gained += block - token
    if kind == "random":
        assert gained > 0.1
    elif kind != "zeros":  # acceptance is certain or impossible, or there is one draft only
        assert gained == pytest.approx(0, abs=1e-9)


def test_with_a_one_hot_q_it_is_token_verification():
    """A one-hot q, declared by the scheme or given as a distribution."""
    p, q = random_tables("one_hot_q", 4, 3, seeded(2))
    dense, _ = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID)
    said = Draft.chain(dense.tokens, SamplingScheme.ONE_HOT)
    target = target_rows(logits_of(p), said, PLAIN)
    for draft in (dense, said):
        assert torch.allclose(
            BlockVerification().stop_probs(target, draft), SpeculativeSampling().stop_probs(target, said), atol=1e-12
        )
        for row in range(4):
            stop = torch.full((len(said.tokens),), row)
            ours, theirs = (
                rule.next_token_probs(target, said, stop) for rule in (BlockVerification(), SpeculativeSampling())
            )
            assert torch.allclose(ours, theirs, atol=1e-12)


def test_a_sparse_q_is_the_same_q():
    p, q = random_tables("random", 4, 3, seeded(3), narrow=True)
    dense, _ = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID)
    sparse, _ = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID, supports=random_supports(q, seeded(4)))
    target = target_rows(logits_of(p), dense, PLAIN)
    stop = torch.arange(len(dense.tokens)) % 4
    assert torch.allclose(*(BlockVerification().stop_probs(target, draft) for draft in (dense, sparse)), atol=1e-15)
    assert torch.allclose(*(BlockVerification().next_token_probs(target, d, stop) for d in (dense, sparse)), atol=1e-15)


def test_anything_but_a_chain_is_refused():
    for scheme, shape in product(SamplingScheme, (Shape.CHAINS, Shape.TREE)):
        with pytest.raises(ValueError, match=f"verifier=block verifies chains.*{shape.name}"):
            BlockVerification().check(scheme, shape)
