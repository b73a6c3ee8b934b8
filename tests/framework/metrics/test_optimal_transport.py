"""The optimal transport against its linear program, the closed form of one draft, and every rule of several drafts."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from experiments.proof.tiny_drafters import drafter_node, tiny_factory_of
from framework.conformance.enumeration import TREES, chains, every_draft, expected_tokens, target_rows
from framework.conformance.tiny_models import tiny_target
from framework.conformance.toy_distributions import KINDS, logits_of, random_tables
from framework.core.draft import SamplingScheme
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.optimal_transport import optimal_acceptance, optimum_after_pending
from framework.verifiers.block import BlockVerification
from framework.verifiers.k_seq import KSeq
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.traversal import Traversal
from framework.verifiers.tree_walk import TreeWalk

PLAIN = Sampling()
IID, WITHOUT, CHOSEN = SamplingScheme.IID, SamplingScheme.WITHOUT_REPLACEMENT, SamplingScheme.ONE_HOT


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pair(kind: str, seed: int, width: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    p, q = random_tables(kind, width, 1, seeded(seed))
    return p[0], q[0]


@pytest.mark.parametrize("scheme", [IID, WITHOUT])
@pytest.mark.parametrize("kind", KINDS)
def test_one_draft_is_accepted_with_probability_sum_min_p_q(kind, scheme):
    for seed in range(5):
        p, q = pair(kind, seed, width=50)
        found = optimal_acceptance(p, q, torch.tensor([1]), scheme).item()
        assert found == pytest.approx(torch.minimum(p, q).sum().item(), abs=1e-6)


@pytest.mark.parametrize("scheme", [IID, WITHOUT])
@pytest.mark.parametrize("kind", ["random", "zeros", "equal", "disjoint", "one_hot_p"])
def test_several_drafts_reach_the_value_of_the_linear_program(kind, scheme):
    """One variable for every pair of a tuple of drafts and a token in it; marginals are upper bounds."""
    for seed, number in product(range(4), (2, 3)):
        p, q = pair(kind, seed)
        number = min(number, int((q > 0).sum())) if scheme is WITHOUT else number
        draft, weights = every_draft([q], parent=[-1] * number, scheme=scheme)
        pairs = [(row, token) for row, drawn in enumerate(draft.tokens.tolist()) for token in set(drawn)]
        bounds = np.zeros((len(weights) + 4, len(pairs)))
        for column, (row, token) in enumerate(pairs):
            bounds[row, column] = bounds[len(weights) + token, column] = 1
        limits = np.concatenate([weights.numpy(), p[0].numpy()])
        optimum = -linprog(-np.ones(len(pairs)), A_ub=bounds, b_ub=limits).fun
        found = optimal_acceptance(p, q, torch.tensor([number]), scheme).item()
        assert found == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize("scheme", [IID, WITHOUT])
@pytest.mark.parametrize("parent", [[-1, -1, -1], chains(2, 2), TREES[2]], ids=str)
def test_no_rule_accepts_more_at_depth_1(parent, scheme):
    rules = [RecursiveRejection(), Traversal(), *([KSeq()] if scheme is IID else [])]
    for seed in range(5):
        p, q = random_tables("random", 3, 2, seeded(seed))
        draft, weights = every_draft(q, parent=parent, scheme=scheme)
        target = target_rows(logits_of(p), draft, PLAIN)
        optimum = optimum_after_pending(target, draft)
        assert torch.allclose(optimum, optimum[:1], atol=1e-12)  # over the draws, whatever was drawn
        kept = [float((weights * (1 - rule.stop_probs(target, draft)[:, 0])).sum()) for rule in rules]
        assert 0 < max(kept) <= optimum[0] + 1e-6


def test_drafts_that_are_not_offered_do_not_count_and_chosen_tokens_keep_their_mass():
    p, q = random_tables("random", 4, 1, seeded(3))
    draft, _ = every_draft(q, parent=[-1, -1], scheme=IID)
    fewer = draft.offered(torch.tensor([[True, False]]).expand_as(draft.valid))
    found = optimum_after_pending(target_rows(logits_of(p), fewer, PLAIN), fewer)
    assert found[0].item() == pytest.approx(torch.minimum(p[0], q[0]).sum().item(), abs=1e-12)
    none = draft.offered(torch.zeros_like(draft.valid))
    assert optimum_after_pending(target_rows(logits_of(p), none, PLAIN), none).tolist() == [0] * len(draft.tokens)
    chosen, _ = every_draft(q, parent=[-1, -1], scheme=CHOSEN)
    target = target_rows(logits_of(p), chosen, PLAIN)
    kept = 1 - TreeWalk().stop_probs(target, chosen)[:, 0]
    assert torch.allclose(optimum_after_pending(target, chosen), kept, atol=1e-12)


@torch.no_grad()
def test_a_record_of_independent_siblings_has_the_optimum_beside_its_acceptance():
    target = tiny_target(vocabulary=5)
    node = drafter_node("transformer_tree")
    node.children, node.branching = "iid", [3]
    engine = Engine(
        target=target, drafter=tiny_factory_of(node, 5)(target=target), verifier=KSeq(), gamma_policy=Fixed(gamma=2),
        sampling=PLAIN,
    )  # fmt: skip
    generation = engine.generate(
        [[1, 2, 1]] * 300, stopping=Stopping(max_new_tokens=12), seeds=list(range(300)), detailed=True
    )
    metrics, rounds = generation.tally.metrics(), generation.tally.optimum_tested
    assert rounds > 500 and metrics["alpha/optimal"] < 1
    # Within 5 standard errors, below 1e-6 by chance.
    assert metrics["alpha/position/1"] < metrics["alpha/optimal"] + 5 * 0.5 / rounds**0.5
    assert metrics["alpha/position/1"] > (1 - (2 / 3) ** 3) * metrics["alpha/optimal"] - 5 * 0.5 / rounds**0.5


def most_tokens_per_round(p: list[torch.Tensor], q: list[torch.Tensor], parent: list[int], scheme) -> float:
    """Largest expected tokens per round of any exact rule for whole drafts, by linear programming.

    Variables: the probability of every draft, stop and next token. Constraints: those of a draft sum to its own
    probability, and the first depth + 1 tokens, continued by plain target steps, have the target's distribution.
    """
    draft, weights = every_draft(q, parent=parent, scheme=scheme)
    width, depth = p[0].shape[1], [0]
    for above in parent:
        depth.append(depth[above + 1] + 1)
    longest = max(depth) + 1
    paths = []  # of every draft: the tokens to each row of [pending, nodes...]
    for tokens in draft.tokens.tolist():
        path = [()]
        for token, above in zip(tokens, parent, strict=True):
            path.append((*path[above + 1], token))
        paths.append(path)
    columns = [
        (row, (*path, token)) for row, found in enumerate(paths) for path in found for token in range(width)
    ]  # fmt: skip

    def mass(text: tuple[int, ...], begin: int) -> float:
        prefixes = [sum(token * width ** (at - 1 - i) for i, token in enumerate(text[:at])) for at in range(len(text))]
        return float(np.prod([p[at][prefixes[at], text[at]].item() for at in range(begin, len(text))]))

    texts = list(product(range(width), repeat=longest))
    equal = np.zeros((len(weights) + len(texts), len(columns)))
    for column, (row, emitted) in enumerate(columns):
        equal[row, column] = 1
        for index, text in enumerate(texts):
            if text[: len(emitted)] == emitted:
                equal[len(weights) + index, column] = mass(text, len(emitted))
    totals = np.concatenate([weights.numpy(), [mass(text, 0) for text in texts]])
    solution = linprog([-len(emitted) for _, emitted in columns], A_eq=equal, b_eq=totals)
    return -solution.fun


def test_block_verification_is_optimal_for_whole_chains():
    """Theorem 2 of Sun et al. (2025); token by token less is accepted."""
    for seed in range(4):
        p, q = random_tables("random", 3, 2, seeded(seed))
        draft, weights = every_draft(q, parent=chains(1, 2), scheme=IID)
        best = most_tokens_per_round(p, q, chains(1, 2), IID)
        assert expected_tokens(BlockVerification(), logits_of(p), draft, weights, PLAIN) == pytest.approx(
            best, abs=1e-6
        )


@pytest.mark.parametrize("scheme", [IID, WITHOUT])
def test_no_rule_commits_more_tokens_of_a_tree(scheme):
    parent = [-1, -1, 0, 1]
    rules = [RecursiveRejection(), Traversal(), *([KSeq()] if scheme is IID else [])]
    for seed in range(3):
        p, q = random_tables("random", 2, 2, seeded(seed))
        draft, weights = every_draft(q, parent=parent, scheme=scheme)
        best = most_tokens_per_round(p, q, parent, scheme)
        found = [expected_tokens(rule, logits_of(p), draft, weights, PLAIN) for rule in rules]
        assert max(found) <= best + 1e-6
