"""Traversal verification against its published recursion, block verification and recursive rejection."""

import pytest
import torch

from framework.conformance.enumeration import TREES, chains, every_draft, expected_tokens, target_rows
from framework.conformance.toy_distributions import logits_of, random_supports, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.block import BlockVerification
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.traversal import Traversal

PLAIN = Sampling()
STOPS = [torch.arange(3**i) % 4 != 1 for i in range(3)]  # some prefixes offer no node
STRUCTURES = [TREES[2], [-1, -1, 1], [-1, 0, 0, 1], [-1, -1, -1]]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class WalkedThrough:
    """The published recursion for one draft: children before their node, tests in order."""

    def __init__(self, target: TargetRows, draft: Draft, row: int):
        assert draft.probs is not None
        self.p, self.q = target.all_probs[row].tolist(), draft.probs[row].tolist()
        self.tokens, self.parent = draft.tokens[row].tolist(), draft.parent[row].tolist()
        self.valid, self.without = draft.valid[row].tolist(), draft.scheme is SamplingScheme.WITHOUT_REPLACEMENT
        self.stops, self.follows = [0.0] * len(self.p), {}
        self.not_ended = 1.0
        self.visit(-1, 1.0)

    def visit(self, node: int, pi: float) -> None:
        p, d = self.p[node + 1], None
        for child in (other for other in range(len(self.tokens)) if self.parent[other] == node and self.valid[other]):
            d, x = d or self.q[child], self.tokens[child]
            self.visit(child, min(1.0, pi * p[x] / d[x]))
            rest = [max(0.0, pi * a - b) for a, b in zip(p, d, strict=True)]
            z = sum(rest)
            pi, p = (z / (z + 1 - pi) if z + 1 - pi else 1.0), ([mass / z for mass in rest] if z else p)
            if self.without:
                d = [0.0 if token == x else mass for token, mass in enumerate(d)]
                d = [mass / (sum(d) or 1) for mass in d]
        self.stops[node + 1] = self.not_ended * pi
        self.follows[node + 1] = p
        self.not_ended *= 1 - pi


@pytest.mark.parametrize("scheme", [SamplingScheme.WITHOUT_REPLACEMENT, SamplingScheme.IID])
@pytest.mark.parametrize("parent", STRUCTURES, ids=str)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_its_distributions_are_those_of_the_recursion(kind, parent, scheme):
    p, q = random_tables(kind, 3, 3, seeded(0))
    draft, _ = every_draft(q, parent=parent, scheme=scheme, offered=STOPS)
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = Traversal().stop_probs(target, draft)
    rows = range(len(parent) + 1)
    next_token_probs = [
        Traversal().next_token_probs(target, draft, torch.full((len(draft.tokens),), row)) for row in rows
    ]
    for row in range(len(draft.tokens)):
        walked = WalkedThrough(target, draft, row)
        assert stop_probs[row].tolist() == pytest.approx(walked.stops, abs=1e-12)
        for stop in rows:
            if walked.stops[stop] > 1e-9:
                assert next_token_probs[stop][row].tolist() == pytest.approx(walked.follows[stop], abs=1e-9)


@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint", "equal"])
def test_a_chain_is_judged_as_a_block(kind):
    p, q = random_tables(kind, 3, 3, seeded(1), narrow=True)
    for supports in (None, random_supports(q, seeded(3))):
        draft, weights = every_draft(
            q, parent=chains(1, 3), scheme=SamplingScheme.IID, offered=STOPS, supports=supports
        )
        target = target_rows(logits_of(p), draft, PLAIN)
        distributions = [rule.stop_probs(target, draft) for rule in (Traversal(), BlockVerification())]
        assert torch.allclose(*distributions, rtol=0, atol=1e-12)
        for row in range(4):
            stop, reached = torch.full((len(weights),), row), distributions[0][:, row] > 1e-9
            ours, theirs = (rule.next_token_probs(target, draft, stop) for rule in (Traversal(), BlockVerification()))
            assert torch.allclose(ours[reached], theirs[reached], rtol=0, atol=1e-9)


def test_it_keeps_more_than_recursive_rejection_where_siblings_differ():
    """Without replacement, on all 120 random tables, up to rounding; we know no proof.

    Not so with independent siblings, where recursive rejection merges equal nodes.
    """
    for parent in STRUCTURES[:3]:
        for seed in range(40):
            p, q = random_tables("random", 3, 3, seeded(seed))
            draft, weights = every_draft(q, parent=parent, scheme=SamplingScheme.WITHOUT_REPLACEMENT)
            more, less = (
                expected_tokens(rule, logits_of(p), draft, weights, PLAIN)
                for rule in (Traversal(), RecursiveRejection())
            )
            assert more >= less - 1e-12


def test_without_a_second_level_there_is_nothing_to_save():
    """At depth 1 a rejected sibling leaves the residual of recursive rejection: equal results."""
    for scheme, seed in (
        (scheme, seed) for scheme in (SamplingScheme.IID, SamplingScheme.WITHOUT_REPLACEMENT) for seed in range(5)
    ):
        p, q = random_tables("random", 4, 1, seeded(seed))
        draft, weights = every_draft(q, parent=[-1, -1, -1], scheme=scheme)
        found = [
            expected_tokens(rule, logits_of(p), draft, weights, PLAIN) for rule in (Traversal(), RecursiveRejection())
        ]
        assert found[0] == pytest.approx(found[1], abs=1e-12)


def test_every_draft_is_taken():
    for scheme in SamplingScheme:
        for shape in Shape:
            Traversal().check(scheme, shape)
