"""In float32, as models give them, the laws of every rule for drawn tokens are laws, and exact up to its rounding."""

from itertools import product

import pytest
import torch

from framework.draft import Draft, Law, Shape, TargetRows
from framework.enumeration import TREES, chains, every_draft, output_law, target_law, total_variation
from framework.random_tables import KINDS, logits_of, random_tables
from framework.sampling import Sampling
from framework.verifiers.block import BlockVerification
from framework.verifiers.k_seq import KSeq
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.traversal import Traversal

WIDTH, ROWS = 500, 64
PLAIN = Sampling()
STRUCTURES = [chains(1, 3), chains(3, 2), TREES[2]]
NOISE = [1e-7, 1e-5, 1e-3]  # a drafter nearly as good as the target: what is left of p is a difference of equals


def pairs(law: Law, structures: list[list[int]]) -> list:
    rules = (BlockVerification(), KSeq(), RecursiveRejection(), Traversal())
    found = []
    for rule, parent in product(rules, structures):
        try:
            rule.check(law, Shape.CHAIN if parent == chains(1, len(parent)) else Shape.TREE)
        except ValueError:
            continue
        found.append(pytest.param(rule, parent, law, id=f"{type(rule).__name__} {law.name} {parent}"))
    return found


BOTH = [pair for law in (Law.IID, Law.WITHOUT_REPLACEMENT) for pair in pairs(law, STRUCTURES)]


@pytest.mark.parametrize(("rule", "parent", "law"), BOTH)
def test_the_output_follows_the_targets_law(rule, parent, law):
    for kind, noise in [*((kind, 0.0) for kind in KINDS), *(("equal", noise) for noise in NOISE)]:
        random = torch.Generator().manual_seed(len(parent))
        p, q = random_tables(kind, 3, 3, random)
        q = [table * (1 + noise * torch.randn(table.shape, generator=random)) for table in q]
        p, q = [table.float() for table in p], [(table / table.sum(1, keepdim=True)).float() for table in q]
        draft, weights = every_draft(q, parent=parent, law=law)
        assert draft.probs is not None and draft.probs.dtype == torch.float32
        emitted = output_law(rule, logits_of(p), draft, weights, PLAIN)
        # 1e-7 for each of the few sums of three; a bias that is worth the name is a thousand times that.
        assert total_variation(emitted, target_law(logits_of(p), PLAIN)) < 1e-6, (kind, noise)


@pytest.mark.parametrize("noise", [0.0, *NOISE, 1.0])
@pytest.mark.parametrize(("rule", "parent", "law"), BOTH)
def test_over_many_tokens_its_laws_are_laws(rule, parent, law, noise):
    random = torch.Generator().manual_seed(len(parent))
    depth = [0]
    for above in parent:
        depth.append(depth[above + 1] + 1)
    logits = 3 * torch.randn(ROWS, max(depth) + 1, WIDTH, generator=random)  # what follows depends on depth alone
    q = (logits + noise * torch.randn(logits.shape, generator=random)).softmax(2)
    tokens = torch.empty(ROWS, 0, dtype=torch.int64)
    for node, above in enumerate(parent):
        masses = q[:, depth[above + 1]]
        if law is Law.WITHOUT_REPLACEMENT:
            siblings = [other for other in range(node) if parent[other] == above]
            masses = masses.scatter(1, tokens[:, siblings], 0.0)
        tokens = torch.cat([tokens, torch.multinomial(masses, 1, generator=random)], 1)
    draft = Draft(
        tokens,
        torch.tensor(parent).expand(ROWS, -1),
        torch.ones_like(tokens, dtype=torch.bool),
        law,
        q[:, [depth[above + 1] for above in parent]],
        shape=Shape.CHAIN if parent == chains(1, len(parent)) else Shape.TREE,
    )
    target = TargetRows(logits[:, depth], draft, PLAIN)
    stop_law = rule.stop_law(target, draft)
    every_stop = [rule.replacement(target, draft, torch.full((ROWS,), row)) for row in range(draft.num_nodes + 1)]
    for one in (stop_law, *every_stop):
        assert one.dtype == torch.float32 and (one >= 0).all()
        assert torch.allclose(one.sum(1), torch.ones(ROWS), rtol=0, atol=1e-5)
