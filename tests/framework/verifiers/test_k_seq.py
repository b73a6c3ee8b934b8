"""K-SEQ: the divisor of the ratios, the optimal transport bound, and equal prefixes."""

from itertools import pairwise, product

import pytest
import torch
from scipy.optimize import brentq, linprog

from framework.conformance.enumeration import (
    TREES,
    chains,
    every_draft,
    expected_tokens,
    output_distribution,
    target_distribution,
    target_rows,
    total_variation,
)
from framework.conformance.toy_distributions import KINDS, logits_of, random_stops, random_supports, random_tables
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.verifiers.k_seq import KSeq, divisor
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.traversal import Traversal
from framework.verifiers.tree_walk import TreeWalk

PLAIN = Sampling()
STOPS = [torch.arange(3**i) % 4 != 1 for i in range(3)]  # some prefixes offer no node
RULE = KSeq()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tokens_per_round(kind: str, seed: int, parent: list[int]) -> float:
    p, q = random_tables(kind, 3, 2, seeded(seed))
    draft, weights = every_draft(q, parent=parent, scheme=SamplingScheme.IID)
    return expected_tokens(RULE, logits_of(p), draft, weights, PLAIN)


@pytest.mark.parametrize("number", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_the_divisor_is_the_root_that_scipy_finds(kind, number):
    """The root of 1 - (1 - beta) ** k = rho beta; residual mass equals rejection probability."""
    for seed in range(10):
        p, q = (tables[0][0] for tables in random_tables(kind, 5, 1, seeded(seed)))

        def beta(rho, p=p, q=q):
            return sum(min(b, a / rho) for a, b in zip(p.tolist(), q.tolist(), strict=True))

        def excess(rho, beta=beta):
            return 1 - (1 - beta(rho)) ** number - rho * beta(rho)

        rho = divisor(p[None], q[None], torch.tensor([number])).item()
        assert 1 <= rho <= number and abs(excess(rho)) <= 1e-12
        if excess(1.0) > 1e-9 and excess(number) < -1e-9:
            assert rho == pytest.approx(brentq(excess, 1, number, xtol=1e-14), abs=1e-9)
        left = (p - rho * q).clamp(min=0).sum().item()
        assert left == pytest.approx((1 - beta(rho)) ** number, abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_it_stays_below_the_optimal_transport_and_near_it(seed):
    """Acceptance probability at one position against the optimum, a linear program over couplings.

    The paper proves that K-SEQ reaches at least 1 - (1 - 1/K)^K of the optimum.
    """
    number, width = 2, 3
    p, q = random_tables("random", width, 1, seeded(seed))
    draws = list(product(range(width), repeat=number))
    weight = [float(torch.stack([q[0][0, x] for x in draw]).prod()) for draw in draws]
    reward = [-float(token in draw) for draw in draws for token in range(width)]
    rows, sums = [], []
    for index, mass in enumerate(weight):
        rows.append([float(index == other) for other in range(len(draws)) for _ in range(width)])
        sums.append(mass)
    for token in range(width):
        rows.append([float(token == other) for _ in draws for other in range(width)])
        sums.append(p[0][0, token].item())
    optimum = -linprog(reward, A_eq=rows, b_eq=sums, bounds=(0, None)).fun
    draft, weights = every_draft(q, parent=chains(number, 1), scheme=SamplingScheme.IID)
    kept = expected_tokens(RULE, logits_of(p), draft, weights, PLAIN) - 1
    assert (1 - (1 - 1 / number) ** number) * optimum <= kept <= optimum + 1e-9


@pytest.mark.parametrize(
    "parent", [*(chains(k, 2) for k in (1, 2, 3)), chains(4, 1), TREES[2], [-1, -1, 0, 1, 1]], ids=str
)
@pytest.mark.parametrize("kind", ["random", "zeros", "almost_equal"])
def test_the_output_follows_the_targets_distribution(kind, parent):
    """Up to four drafts, some equal in one or two tokens, some not offered."""
    for seed, ragged in product(range(2), (False, True)):
        p, q = random_tables(kind, 3, 2, seeded(seed), narrow=True)
        offered = random_stops(3, 2, seeded(seed)) if ragged else None
        for supports in (None, random_supports(q, seeded(seed))):
            draft, weights = every_draft(
                q, parent=parent, scheme=SamplingScheme.IID, offered=offered, supports=supports
            )
            emitted = output_distribution(RULE, logits_of(p), draft, weights, PLAIN)
            assert total_variation(emitted, target_distribution(logits_of(p), PLAIN)) <= 1e-12


@pytest.mark.parametrize("rule", [RULE, RecursiveRejection(), Traversal()], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("dropped", [[0], [1], [0, 4], [3]], ids=str)
def test_a_draft_that_is_not_offered_does_not_count(dropped, rule):
    """Only offered siblings count as independent draws; offers do not depend on the draws."""
    p, q = random_tables("random", 3, 2, seeded(4))
    draft, weights = every_draft(q, parent=chains(3, 2), scheme=SamplingScheme.IID)
    is_dropped = torch.tensor([node in dropped for node in range(6)]).expand_as(draft.valid)
    draft = draft.offered(~is_dropped & ~draft.tree.after(is_dropped))
    emitted = output_distribution(rule, logits_of(p), draft, weights, PLAIN)
    assert total_variation(emitted, target_distribution(logits_of(p), PLAIN)) <= 1e-12


def test_equal_prefixes_are_one_class_and_no_token_counts_twice():
    """Three chains, two with equal first tokens; equal nodes share their first row."""
    p, q = random_tables("random", 4, 2, seeded(1))
    probs = torch.stack([*[q[0][0]] * 3, q[1][2], q[1][2], q[1][0]])[None]
    draft = Draft(
        torch.tensor([[2, 2, 0, 1, 3, 3]]),
        torch.tensor([chains(3, 2)]),
        torch.ones(1, 6, dtype=torch.bool),
        SamplingScheme.IID,
        probs,
        shape=Shape.CHAINS,
    )
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = RULE.stop_probs(target, draft)[0]
    assert stop_probs.sum().item() == pytest.approx(1, abs=1e-12) and stop_probs[2] == 0

    # After token 2 two drafts remain, 1 and then 3; expected values by hand, from the divisor for two.
    after, width = p[1][2], q[1][2]
    rho = divisor(after[None], width[None], torch.tensor([2])).item()
    keep = {x: min(1.0, (after[x] / (rho * width[x])).item()) for x in (1, 3)}
    reach = stop_probs[[1, 4, 5]].sum()
    assert (stop_probs[4] / reach).item() == pytest.approx(keep[1], abs=1e-12)
    assert (stop_probs[5] / reach).item() == pytest.approx((1 - keep[1]) * keep[3], abs=1e-12)
    rest = (after - rho * width).clamp(min=0)
    follows = RULE.next_token_probs(target, draft, torch.tensor([1]))[0]
    assert torch.allclose(follows, rest / rest.sum(), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_more_drafts_keep_more():
    """On each of 40 random tables: 4 over 1 at one position, 3 over 2 over 1 at two."""
    for kind, seed in product(("random", "zeros"), range(20)):
        for numbers, gamma in (((1, 4), 1), ((1, 2, 3), 2)):
            tokens = [tokens_per_round(kind, seed, chains(number, gamma)) for number in numbers]
            assert all(more >= fewer - 1e-12 for fewer, more in pairwise(tokens))
            assert kind == "zeros" or tokens[-1] > tokens[0] + 1e-3


@pytest.mark.parametrize("kind", ["random", "zeros", "disjoint"])
def test_one_chain_is_speculative_sampling(kind):
    p, q = random_tables(kind, 3, 3, seeded(0))
    draft, weights = every_draft(q, parent=chains(1, 3), scheme=SamplingScheme.IID, offered=STOPS)
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = RULE.stop_probs(target, draft)
    assert torch.allclose(stop_probs, SpeculativeSampling().stop_probs(target, draft), rtol=0, atol=1e-12)
    for row in range(4):
        stop, reached = torch.full((len(weights),), row), stop_probs[:, row] > 1e-9
        ours, theirs = (rule.next_token_probs(target, draft, stop) for rule in (RULE, SpeculativeSampling()))
        assert torch.allclose(ours[reached], theirs[reached], rtol=0, atol=1e-12)


def test_chosen_tokens_are_walked_to():
    p, q = random_tables("random", 3, 2, seeded(0))
    draft, _ = every_draft(q, parent=chains(2, 2), scheme=SamplingScheme.ONE_HOT)
    target, stop = target_rows(logits_of(p), draft, PLAIN), torch.tensor([0])
    assert torch.equal(RULE.stop_probs(target, draft), TreeWalk().stop_probs(target, draft))
    assert torch.equal(RULE.next_token_probs(target, draft, stop), TreeWalk().next_token_probs(target, draft, stop))


def test_siblings_without_replacement_are_refused():
    for shape in (Shape.CHAINS, Shape.TREE):
        with pytest.raises(ValueError, match=r"verifier=k_seq .*WITHOUT_REPLACEMENT"):
            RULE.check(SamplingScheme.WITHOUT_REPLACEMENT, shape)
    for scheme, shape in product((SamplingScheme.IID, SamplingScheme.ONE_HOT), Shape):
        RULE.check(scheme, shape)
