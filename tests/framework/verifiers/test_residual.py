"""The residual after rejected siblings.

Equal for shared and unshared trees, computed once per round, and correct for peaked distributions.
"""

import random
from dataclasses import replace

import pytest
import torch

from framework.conformance.enumeration import TREES, chains, every_draft, target_rows
from framework.conformance.toy_distributions import logits_of, random_stops, random_tables
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.core.tree import Tree
from framework.verifiers.block import BlockVerification
from framework.verifiers.k_seq import KSeq
from framework.verifiers.lenience import Lenience
from framework.verifiers.prefix_merging import MergedPrefixes
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.traversal import Traversal
from framework.verifiers.tree_walk import TreeWalk
from framework.verifiers.verifier import Verifier

PLAIN = Sampling()
RULES = [
    (RecursiveRejection(), SamplingScheme.IID),
    (RecursiveRejection(), SamplingScheme.WITHOUT_REPLACEMENT),
    (Traversal(), SamplingScheme.IID),
    (Traversal(), SamplingScheme.WITHOUT_REPLACEMENT),
    (KSeq(), SamplingScheme.IID),
    (TreeWalk(), SamplingScheme.ONE_HOT),
]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distributions_of(rule: Verifier, target: TargetRows, draft: Draft) -> list[torch.Tensor]:
    """The stop probability, and the next-token distributions of every reachable row."""
    stop_probs = rule.stop_probs(target, draft)
    distributions = [stop_probs]
    for row in range(draft.num_nodes + 1):
        next_token_probs = rule.next_token_probs(target, draft, torch.full((len(stop_probs),), row))
        distributions.append(next_token_probs.where(stop_probs[:, row, None] > 1e-9, 0))
    return distributions


def name_of(value) -> str:
    return value.name if isinstance(value, SamplingScheme) else type(value).__name__


@pytest.mark.parametrize(("rule", "scheme"), RULES, ids=name_of)
@pytest.mark.parametrize(
    "parent", [TREES[2], TREES[3], [-1, -1, -1, 1, 1, 2, 4], [-1, -1, 0, 1, 1], chains(3, 2)], ids=str
)
def test_a_structure_that_the_host_knows_changes_nothing(rule, scheme, parent):
    p, q = random_tables("random", 3, 3, seeded(0))
    if len(parent) > 6:
        p, q = random_tables("random", 2, 3, seeded(0))
    offered = [torch.tensor([True]), *random_stops(len(p[0][0]), 3, seeded(1))[1:]]
    draft, _ = every_draft(q, parent=parent, scheme=scheme, shape=Shape.TREE, offered=offered)
    tree = Tree.shared(parent, len(draft.tokens), torch.device("cpu"))
    known = replace(draft, parent=tree.parent, known_tree=tree)
    unknown = replace(draft, parent=draft.parent.clone(), known_tree=None)
    every_distribution = [
        distributions_of(rule, target_rows(logits_of(p), each, PLAIN), each) for each in (known, unknown)
    ]
    for one, other in zip(*every_distribution, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rest_of_q", [(1e-20, 1e-25), (1e-40, 0), (3e-42, 1e-45)], ids=str)
@pytest.mark.parametrize("rule", [RecursiveRejection(), Traversal()], ids=lambda rule: type(rule).__name__)
def test_siblings_are_drawn_from_what_is_left_however_little_that_is(rule, rest_of_q, dtype):
    """Without replacement, a second sibling's masses of 1e-20 and 1e-25 act as 1 and 1e-5.

    By hand: p = (.5, .3, .2); the first sibling, accepted with 1/2, leaves (0, .6, .4); then the second with .6 / 1.
    """
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=dtype), torch.tensor([1, *rest_of_q], dtype=dtype)
    draft = Draft(
        torch.tensor([[0, 1]]),
        torch.tensor([[-1, -1]]),
        torch.ones(1, 2, dtype=torch.bool),
        SamplingScheme.WITHOUT_REPLACEMENT,
        q.expand(1, 2, -1),
        shape=Shape.TREE,
    )
    target = TargetRows(p.log().expand(1, 3, -1), draft, PLAIN)
    assert rule.stop_probs(target, draft)[0].tolist() == pytest.approx([0.5 * 0.4, 0.5, 0.5 * 0.6], rel=1e-3)
    assert rule.next_token_probs(target, draft, torch.tensor([0]))[0].tolist() == pytest.approx([0, 0, 1], abs=1e-3)


@pytest.mark.parametrize(("rule", "scheme"), RULES, ids=name_of)
def test_a_rule_pools_and_divides_once_a_round(monkeypatch, rule, scheme):
    calls, of = [], MergedPrefixes.of
    monkeypatch.setattr(MergedPrefixes, "of", lambda draft: calls.append(draft) or of(draft))
    p, q = random_tables("random", 3, 2, seeded(0))
    draft, _ = every_draft(q, parent=TREES[2], scheme=scheme)
    for _ in range(2):
        target = target_rows(logits_of(p), draft, PLAIN)
        distributions_of(rule, target, draft)
    assert len(calls) == (0 if isinstance(rule, Traversal) else 2)


@pytest.mark.parametrize("rule", [BlockVerification(), Lenience(lenience=0.5)], ids=lambda rule: type(rule).__name__)
def test_what_is_remembered_belongs_to_one_draft(rule):
    """Target rows cache nothing of one draft for another."""
    p, q = random_tables("random", 3, 2, seeded(0))
    draft, _ = every_draft(q, parent=chains(1, 2), scheme=SamplingScheme.IID)
    fewer = draft.offered(torch.tensor([True, False]).expand_as(draft.valid))
    target = target_rows(logits_of(p), draft, PLAIN)
    for each in (draft, fewer, draft):
        alone = distributions_of(rule, target_rows(logits_of(p), each, PLAIN), each)
        assert all(torch.equal(*pair) for pair in zip(alone, distributions_of(rule, target, each), strict=True))


def test_a_node_is_lost_where_one_was_offered_behind_the_stop():
    """Random trees with nodes not offered; on a chain: fewer nodes accepted than offered."""
    dice = random.Random(0)
    for _ in range(100):
        parent = [dice.randrange(-1, node) for node in range(5)]
        valid: list[bool] = []
        for above in parent:
            valid.append((above < 0 or valid[above]) and dice.random() < 0.7)
        offered = torch.tensor([valid])
        tree = Draft(
            torch.zeros(1, 5, dtype=torch.int64),
            torch.tensor([parent]),
            offered,
            SamplingScheme.ONE_HOT,
            shape=Shape.TREE,
        )
        for stop in range(6):
            expected = any(valid[node] for node in range(5) if parent[node] == stop - 1)
            assert ended(tree, stop).rejected.tolist() == [expected]
    valid = torch.arange(5) < torch.tensor([[0], [2], [5]])
    chain = Draft.chain(torch.zeros(3, 5, dtype=torch.int64), SamplingScheme.ONE_HOT, valid=valid)
    for stop in range(3):
        assert ended(chain, stop).rejected.tolist() == (stop < chain.offered_depth).tolist()
    assert ended(Draft.empty(2, torch.device("cpu")), 0).rejected.tolist() == [False, False]


def ended(draft: Draft, row: int) -> Outcome:
    nothing = torch.zeros(len(draft.tokens), dtype=torch.int64)
    return Outcome(draft, nothing + row, nothing, nothing, nothing, nothing)
