"""Lenience: lossy by a stated factor, shown by enumeration without sampling error."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from framework.conformance.enumeration import (
    chains,
    every_draft,
    joint_distribution,
    output_distribution,
    target_rows,
)
from framework.conformance.standard_cases import worst_total_variation
from framework.conformance.toy_distributions import (
    KINDS,
    Tables,
    logits_of,
    random_stops,
    random_supports,
    random_tables,
)
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling, draw
from framework.verifiers.lenience import Lenience
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee, Verifier

ROUNDING = 1e-12
PLAIN, GREEDY = Sampling(), Sampling(temperature=0)
FORMS = ["dense", "sparse", "one_hot"]
LENIENCES = [1.0, 0.5, 0.3, 0.1]
UNIFORM = [[1 / 3] * 3] * 2


def toy(kind: str, form: str, width: int, gamma: int, seed: int, *, ragged: bool = False) -> tuple:
    """p, q, and every draft from q with its weight."""
    random = torch.Generator().manual_seed(seed)
    p, q = random_tables(kind, width, gamma, random, narrow=form == "sparse")
    draft, weights = every_draft(
        q,
        parent=chains(1, gamma),
        scheme=SamplingScheme.ONE_HOT if form == "one_hot" else SamplingScheme.IID,
        offered=random_stops(width, gamma, random) if ragged else None,
        supports=random_supports(q, random) if form == "sparse" else None,
    )
    return p, q, draft, weights


def expected_accepted(rule: Verifier, p: Tables, draft: Draft, weights: Tensor, sampling: Sampling) -> float:
    """Mean number of accepted nodes per round."""
    stop_probs = rule.stop_probs(target_rows(logits_of(p), draft, sampling), draft).double()
    return (weights @ stop_probs @ torch.arange(draft.num_nodes + 1.0).double()).item()


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, Sampling(temperature=0.7, top_p=0.8)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_its_distributions_are_distributions(kind: str, form: str, sampling: Sampling) -> None:
    for lenience in LENIENCES:
        rule = Lenience(lenience=lenience)
        p, _, draft, weights = toy(kind, form, 4, 3, seed=1, ragged=True)
        stop_probs = rule.stop_probs(target_rows(logits_of(p), draft, sampling), draft).double()
        assert stop_probs.shape == (len(weights), 4) and (stop_probs >= 0).all()
        assert torch.allclose(stop_probs.sum(1), torch.ones(len(weights)).double(), rtol=0, atol=1e-14)
        assert (stop_probs[torch.arange(4) > draft.offered_depth.unsqueeze(1)] == 0).all()
        emitted = output_distribution(
            rule, logits_of(p), draft, weights, sampling
        )  # NaN if a next-token probability were negative
        assert math.isclose(emitted.sum().item(), 1, abs_tol=ROUNDING)


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_token_comes_out_with_more_than_p_over_l(kind: str, form: str, ragged: bool) -> None:
    for gamma, seed in [(1, 0), (2, 1), (3, 2)]:
        p, _, draft, weights = toy(kind, form, 4, gamma, seed, ragged=ragged)
        for lenience in LENIENCES:
            emitted = output_distribution(Lenience(lenience=lenience), logits_of(p), draft, weights, PLAIN)
            for position, table in enumerate(p):
                together = emitted.view(4**position, 4, -1).sum(2)  # prefix and next token
                cap = together.sum(1, keepdim=True) * table / lenience
                assert (together <= cap + ROUNDING).all(), (gamma, seed, lenience, position)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_is_kept_as_often_as_the_overlap_of_p_over_l_with_q(kind: str, form: str) -> None:
    for seed in range(5):
        p, q, draft, weights = toy(kind, form, 4, 1, seed)
        probs = q[0][0]
        if form == "one_hot":
            probs = torch.zeros(4).double().index_fill(0, draft.tokens[0], 1.0)
        for lenience in LENIENCES:
            expected = torch.minimum(p[0][0] / lenience, probs).sum().item()
            found = expected_accepted(Lenience(lenience=lenience), p, draft, weights, PLAIN)
            assert math.isclose(found, expected, abs_tol=1e-14)


def test_a_loss_is_followed_by_what_p_has_beyond_l_q() -> None:
    p, q, lenience = torch.tensor([0.1, 0.5, 0.4]), torch.tensor([0.7, 0.2, 0.1]), 0.5
    draft = Draft.chain(torch.tensor([[0]]), SamplingScheme.IID, probs=q.view(1, 1, 3))
    target = TargetRows(p.log().expand(1, 2, 3), draft, PLAIN)
    stop_probs = Lenience(lenience=lenience).stop_probs(target, draft)
    assert torch.allclose(stop_probs, torch.tensor([[1 - 0.1 / 0.35, 0.1 / 0.35]]))
    next_token_probs = Lenience(lenience=lenience).next_token_probs(target, draft, torch.tensor([0]))
    assert torch.allclose(next_token_probs, torch.tensor([[0.0, 0.4, 0.35]]) / 0.75)
    assert torch.allclose(Lenience(lenience=lenience).next_token_probs(target, draft, torch.tensor([1])), p)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lenience", [1e-50, 5e-324])
def test_an_l_that_rounds_to_zero_keeps_whatever_p_allows(lenience: float, form: str) -> None:
    """Found by fuzzing: l q underflowed, and a drawn token passed for one with q = 0."""
    p, _, draft, _ = toy("zeros", form, 4, 1, seed=0)
    if draft.probs is not None:
        draft = replace(draft, probs=draft.probs.float())  # the engine's dtype
    target = TargetRows(
        torch.stack([p[0].log().float(), p[0].log().float()], 1).expand(len(draft.tokens), -1, -1), draft, PLAIN
    )
    expected = (target.prob_of(draft.tokens)[:, 0] > 0).float()
    stop_probs = Lenience(lenience=lenience).stop_probs(target, draft)
    assert torch.equal(stop_probs, torch.stack([1 - expected, expected], 1))


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY, Sampling(temperature=1.5, top_k=3)], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_lenience_1_is_speculative_sampling(kind: str, form: str, sampling: Sampling) -> None:
    p, _, draft, weights = toy(kind, form, 4, 3, seed=3, ragged=True)
    distributions = [
        output_distribution(rule, logits_of(p), draft, weights, sampling)
        for rule in (Lenience(lenience=1), SpeculativeSampling())
    ]
    assert torch.equal(*distributions)
    if sampling == PLAIN:
        assert (distributions[0] - joint_distribution(p)).abs().sum() <= ROUNDING


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=str)
@pytest.mark.parametrize("scheme", [SamplingScheme.IID, SamplingScheme.ONE_HOT])
def test_it_is_lossy_below_1(scheme: SamplingScheme, sampling: Sampling) -> None:
    assert Lenience(lenience=0.5).guarantee is Guarantee.LOSSY
    worst, _ = worst_total_variation(Lenience(lenience=0.5), scheme=scheme, shape=Shape.CHAIN, sampling=sampling)
    assert worst > 1e-3
    exact, case = worst_total_variation(Lenience(lenience=1), scheme=scheme, shape=Shape.CHAIN, sampling=sampling)
    assert exact <= ROUNDING, case


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_the_smaller_l_the_more_is_kept(form: str, sampling: Sampling) -> None:
    kept = torch.zeros(len(LENIENCES))
    for seed in range(10):
        p, _, draft, weights = toy("random", form, 4, 3, seed)
        rules = [Lenience(lenience=lenience) for lenience in LENIENCES]
        of_seed = torch.tensor([expected_accepted(rule, p, draft, weights, sampling) for rule in rules])
        assert (of_seed.diff() >= -1e-6).all()
        kept += of_seed
    assert kept[-1] > kept[0]


# Temperature 0.


def greedy_round(logits: list[float], drafted: int, q: list[list[float]] | None = None) -> tuple:
    """One drafted node under a target of constant logits."""
    probs = None if q is None else torch.tensor([q[:1]])
    draft = Draft.chain(
        torch.tensor([[drafted]]), SamplingScheme.ONE_HOT if q is None else SamplingScheme.IID, probs=probs
    )
    return TargetRows(torch.tensor([[logits] * 2]), draft, GREEDY), draft


@pytest.mark.parametrize("q", [UNIFORM, None], ids=["uniform", "one_hot"])
@pytest.mark.parametrize(("drafted", "kept"), [(0, True), (1, True), (2, False)])
def test_greedy_keeps_what_is_within_a_factor_of_the_best(
    drafted: int, kept: bool, q: list[list[float]] | None
) -> None:
    # Probabilities .6, .3 and .1: a factor of .4 of the best allows .6 and .3.
    target, draft = greedy_round(torch.tensor([0.6, 0.3, 0.1]).log().tolist(), drafted, q)
    rule = Lenience(lenience=0.4)
    assert rule.stop_probs(target, draft).tolist() == [[1 - kept, kept]]
    for stop in (0, 1):
        assert rule.next_token_probs(target, draft, torch.tensor([stop])).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_output_is_q_near_the_best_and_else_the_argmax(kind: str, form: str) -> None:
    """First tokens follow a formula; later ones are never below the allowed factor."""
    for seed in range(5):
        p, q, draft, weights = toy(kind, form, 4, 2, seed)
        probs = q[0][0]
        if form == "one_hot":
            probs = torch.zeros(4).double().index_fill(0, draft.tokens[0, :1], 1.0)
        for lenience in (0.5, 0.1):
            emitted = output_distribution(Lenience(lenience=lenience), logits_of(p), draft, weights, GREEDY)
            first = p[0][0]
            expected = torch.where(first >= lenience * first.max(), probs, 0)
            expected[first.argmax()] += 1 - expected.sum()
            assert torch.allclose(emitted.view(4, -1).sum(1), expected, rtol=0, atol=1e-14)
            for position, table in enumerate(p):
                weak = table < lenience * table.amax(1, keepdim=True) * (1 - 1e-12)
                assert (emitted.view(4**position, 4, -1).sum(2)[weak] == 0).all()


def test_greedy_compares_at_temperature_1_whatever_is_cut_off() -> None:
    logits = torch.tensor([0.6, 0.3, 0.1]).log().tolist()
    target, draft = greedy_round(logits, 1)
    cut = TargetRows(target.logits, draft, Sampling(temperature=0, top_k=1, top_p=0.1, min_p=0.9))
    assert Lenience(lenience=0.4).stop_probs(cut, draft).tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_greedy_keeps_every_best_token_below_1_and_the_smallest_id_at_1(dtype: torch.dtype) -> None:
    for drafted in (1, 2):
        target, draft = greedy_round([0.0, 7.3, 7.3], drafted)
        target = TargetRows(target.logits.to(dtype), draft, GREEDY)
        assert Lenience(lenience=0.999).stop_probs(target, draft).tolist() == [[0, 1]]
        exact = Lenience(lenience=1).stop_probs(target, draft)
        assert torch.equal(exact, SpeculativeSampling().stop_probs(target, draft))
        assert exact.tolist() == [[drafted == 2, drafted == 1]]


def test_greedy_keeps_what_is_exactly_l_times_as_likely() -> None:
    target, draft = greedy_round([0.0, math.log(0.5)], 1)
    assert Lenience(lenience=0.5).stop_probs(target, draft).tolist() == [[0, 1]]


@pytest.mark.parametrize("lenience", [1e-300, 0.5])
def test_greedy_never_keeps_a_forbidden_token(lenience: float) -> None:
    target, draft = greedy_round([0.0, -math.inf], 1)
    assert Lenience(lenience=lenience).stop_probs(target, draft).tolist() == [[1, 0]]


# Edge cases, by their numbers in the algorithm reference.


def one_round(
    p: list[list[float]], tokens: list[int], q: list[list[float]] | None, sampling: Sampling, **draft: Tensor
) -> tuple:
    """Target rows and draft of a single row."""
    probs = None if q is None else torch.tensor([q])
    chain = Draft.chain(
        torch.tensor([tokens]), SamplingScheme.ONE_HOT if q is None else SamplingScheme.IID, probs=probs, **draft
    )
    return TargetRows(torch.tensor([p]).log(), chain, sampling), chain


def test_x1_a_token_without_target_mass_is_never_kept() -> None:
    target, draft = one_round([[0.0, 0.4, 0.6]] * 3, [0, 1], UNIFORM, PLAIN)
    stop_probs = Lenience(lenience=0.1).stop_probs(target, draft)
    assert draw(stop_probs, torch.tensor([1 - 2**-53], dtype=torch.float64)) == 0


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=str)
@pytest.mark.parametrize("support", [None, torch.tensor([[[0, 1]] * 2])], ids=["dense", "sparse"])
def test_x2_an_offered_token_without_draft_mass_has_no_distribution(support: Tensor | None, sampling: Sampling) -> None:
    q = [[0.5, 0.5, 0.0]] * 2 if support is None else [[0.5, 0.5]] * 2
    extra = {} if support is None else {"support": support}
    target, draft = one_round([[0.3, 0.3, 0.4]] * 3, [0, 2], q, sampling, **extra)
    rule = Lenience(lenience=0.5)
    assert rule.stop_probs(target, draft).sum(1).isnan().all()
    shorter = draft.offered(torch.tensor([[True, False]]))
    assert torch.allclose(rule.stop_probs(target, shorter).double(), torch.tensor([[0.0, 1.0, 0.0]]).double())


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=str)
def test_x5_an_empty_draft_is_a_plain_target_step(sampling: Sampling) -> None:
    logits = torch.randn(2, 1, 5, generator=torch.Generator().manual_seed(6))
    draft = Draft.empty(2, torch.device("cpu"))
    target = TargetRows(logits, draft, sampling)
    rule = Lenience(lenience=0.5)
    assert torch.equal(rule.stop_probs(target, draft), torch.ones(2, 1))
    assert torch.equal(rule.next_token_probs(target, draft, torch.zeros(2).long()), sampling.probs(logits[:, 0]))


@pytest.mark.parametrize("sampling", [PLAIN, GREEDY], ids=str)
@pytest.mark.parametrize("q", [UNIFORM, None], ids=["dense", "one_hot"])
def test_x15_nan_logits_leave_no_distribution(sampling: Sampling, q: list[list[float]] | None) -> None:
    rule = Lenience(lenience=0.5)
    for broken in (math.nan, math.inf):  # infinite masses have infinite logits
        target, draft = one_round([[0.0, broken, 0.6], *[[0.2, 0.2, 0.6]] * 2], [2, 2], q, sampling)
        assert rule.stop_probs(target, draft).sum(1).isnan().all()
        assert rule.next_token_probs(target, draft, torch.tensor([0])).isnan().any()
    forbidden, draft = one_round([[0.0] * 3, *[[0.2, 0.2, 0.6]] * 2], [2, 2], q, sampling)
    assert rule.stop_probs(forbidden, draft).sum(1).isnan().all()


@pytest.mark.parametrize("shape", [Shape.TREE, Shape.CHAINS])
def test_chains_only(shape: Shape) -> None:
    for scheme in SamplingScheme:
        Lenience(lenience=0.5).check(scheme, Shape.CHAIN)
        with pytest.raises(ValueError, match=f"verifier=lenience.*{shape.name}.*verifier=.*drafter="):
            Lenience(lenience=0.5).check(scheme, shape)


@pytest.mark.parametrize("wrong", [0, -0.1, 1.01, math.nan, math.inf, True, "0.5", None])
def test_a_wrong_option_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^lenience is .*\(0, 1\]"):
        Lenience(lenience=wrong)  # type: ignore[arg-type]
