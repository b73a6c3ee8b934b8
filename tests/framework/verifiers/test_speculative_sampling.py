"""Speculative sampling, proved by enumeration: without sampling error, bounds are those of rounding."""

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from framework.conformance.enumeration import (
    chains,
    every_draft,
    joint_distribution,
    output_distribution,
    target_distribution,
    target_rows,
    total_variation,
)
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
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee

ROUNDING = 1e-12
BIASED = 1e-3
PLAIN = Sampling()
SIZES = [(width, gamma, seed) for width in (3, 4, 5) for gamma in (1, 2, 3) for seed in range(5)]
ALMOST_ONE = torch.nextafter(torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distance(rule: SpeculativeSampling, p: Tables, draft: Draft, weights: Tensor, sampling: Sampling = PLAIN) -> float:
    """Total variation between a rule's output distribution and the target's."""
    return total_variation(
        output_distribution(rule, logits_of(p), draft, weights, sampling), target_distribution(logits_of(p), sampling)
    )


def propose(form: str, q: Tables, random: torch.Generator, offered: Tables | None = None) -> tuple[Draft, Tensor]:
    scheme = SamplingScheme.ONE_HOT if form == "one_hot" else SamplingScheme.IID
    supports = random_supports(q, random) if form == "sparse" else None
    return every_draft(q, parent=chains(1, len(q)), scheme=scheme, offered=offered, supports=supports)


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_follows_the_targets_distribution(kind: str, form: str, ragged: bool) -> None:
    for width, gamma, seed in SIZES:
        random = seeded(seed)
        p, q = random_tables(kind, width, gamma, random, narrow=form == "sparse")
        draft, weights = propose(form, q, random, random_stops(width, gamma, random) if ragged else None)
        probs = output_distribution(SpeculativeSampling(), logits_of(p), draft, weights, PLAIN)
        assert total_variation(probs, joint_distribution(p)) <= ROUNDING, (width, gamma, seed)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(temperature=0.3),
        Sampling(temperature=3),
        Sampling(top_k=2),
        Sampling(top_p=0.7),
        Sampling(min_p=0.3),
        Sampling(temperature=1.5, top_k=3, top_p=0.9, min_p=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
def test_output_follows_the_targets_distribution_under_every_sampling(sampling: Sampling, form: str) -> None:
    for width, gamma, seed in SIZES:
        random = seeded(seed)
        p, q = random_tables("random", width, gamma, random, narrow=form == "sparse")
        q = [sampling.probs(table) for table in logits_of(q)]
        draft, weights = propose(form, q, random)
        assert distance(SpeculativeSampling(), p, draft, weights, sampling) <= ROUNDING, (width, gamma, seed)


def test_float32_distributions_are_exact_up_to_their_rounding() -> None:
    for width, gamma, seed in SIZES:
        p, q = random_tables("random", width, gamma, seeded(seed))
        draft, weights = propose("dense", [table.float() for table in q], seeded(seed))
        probs = output_distribution(SpeculativeSampling(), [table.log().float() for table in p], draft, weights, PLAIN)
        assert total_variation(probs, joint_distribution(p)) <= 1e-6


def test_support_may_be_padded_with_ids_without_mass() -> None:
    random = seeded(0)
    p, q = random_tables("random", 5, 2, random, narrow=True)
    draft, weights = propose("sparse", q, random)
    assert draft.probs is not None and draft.support is not None
    padded = Draft.chain(
        draft.tokens,
        draft.scheme,
        probs=torch.cat([draft.probs, torch.zeros_like(draft.probs)], 2),
        support=torch.cat([draft.support, draft.tokens.unsqueeze(2).expand_as(draft.support)], 2),
    )
    probs = output_distribution(SpeculativeSampling(), logits_of(p), padded, weights, PLAIN)
    assert total_variation(probs, joint_distribution(p)) <= ROUNDING


def test_drawn_rounds_follow_the_targets_distribution() -> None:
    """Drawn tokens with float32 distributions.

    Chi-square of 27 cells; false-alarm rate 1e-7, fixed seed.
    """
    width, gamma, rounds = 3, 2, 200_000
    random = seeded(1)
    p, q = random_tables("random", width, gamma, random)
    p = [0.5 * table + 0.5 / width for table in p]  # cells of sufficient expected count for a chi-square
    uniforms = torch.rand(rounds, 2 * gamma + 2, dtype=torch.float64, generator=random)
    tokens, distributions, prefix = [], [], torch.zeros(rounds, dtype=torch.int64)
    for depth, table in enumerate(q):
        distributions.append(table[prefix].float())
        tokens.append(draw(distributions[-1], uniforms[:, depth]))
        prefix = prefix * width + tokens[-1]
    draft = Draft.chain(torch.stack(tokens, 1), SamplingScheme.IID, probs=torch.stack(distributions, 1))
    target = target_rows([table.float() for table in logits_of(p)], draft, PLAIN)
    verifier = SpeculativeSampling()
    stop = draw(verifier.stop_probs(target, draft), uniforms[:, gamma])
    following = draw(verifier.next_token_probs(target, draft, stop), uniforms[:, gamma + 1])
    emitted = torch.cat([draft.tokens, following.unsqueeze(1)], 1)
    emitted.scatter_(1, stop.unsqueeze(1), following.unsqueeze(1))
    cells = emitted[:, 0]
    for depth in range(1, gamma + 1):  # rows that stopped earlier continue with target draws
        own = draw(p[depth][cells], uniforms[:, gamma + 1 + depth])
        cells = cells * width + torch.where(stop < depth, own, emitted[:, depth])
    counts, expected = torch.bincount(cells, minlength=width ** (gamma + 1)), joint_distribution(p) * rounds
    assert expected.min() > 5
    assert chisquare(counts, expected).pvalue > 1e-7


# Negative controls: faults that the enumeration must catch.


class ResidualIsP(SpeculativeSampling):
    """Draws from the whole of p after a rejection."""

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        return target.probs(stop)


class RawLastRow(SpeculativeSampling):
    """Draws the token after a fully accepted draft from a softmax without temperature."""

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        raw = target.logits[:, -1].softmax(1)
        return torch.where((stop == draft.num_nodes).unsqueeze(1), raw, super().next_token_probs(target, draft, stop))


@pytest.mark.parametrize("rule", [ResidualIsP(), RawLastRow()], ids=["residual_is_p", "raw_last_row"])
def test_enumeration_catches_a_wrong_replacement(rule: SpeculativeSampling) -> None:
    sampling = Sampling(temperature=0.7)
    p, q = random_tables("random", 4, 2, seeded(2))
    draft, weights = propose("dense", q, seeded(2))
    assert distance(SpeculativeSampling(), p, draft, weights, sampling) <= ROUNDING
    assert distance(rule, p, draft, weights, sampling) > BIASED


def test_enumeration_catches_chosen_tokens_reported_as_drawn() -> None:
    p, q = random_tables("random", 4, 2, seeded(3))
    chosen, weights = propose("one_hot", q, seeded(3))
    met = [q[0][0], q[1][chosen.tokens[0, 0]]]
    reported = Draft.chain(chosen.tokens, SamplingScheme.IID, probs=torch.stack(met).unsqueeze(0))
    assert distance(SpeculativeSampling(), p, chosen, weights) <= ROUNDING
    assert distance(SpeculativeSampling(), p, reported, weights) > BIASED


def test_stopping_after_a_weak_token_is_exact_and_dropping_it_is_caught() -> None:
    for seed in range(5):
        p, q = random_tables("random", 3, 3, seeded(seed))
        draft, weights = propose("dense", q, seeded(seed))
        strong = (draft.prob_of_tokens() > 0.3).cumprod(1).bool()
        assert not strong.all() and strong.any(0).all()
        stopped = draft.offered(torch.cat([torch.ones_like(strong[:, :1]), strong[:, :-1]], 1))
        dropped = draft.offered(strong)
        assert distance(SpeculativeSampling(), p, stopped, weights) <= ROUNDING
        assert distance(SpeculativeSampling(), p, dropped, weights) > BIASED


# Edge cases, by their numbers in the algorithm reference.


def one_round(p: list[list[float]], tokens: list[int], q: list[list[float]] | None, **draft: object) -> tuple:
    """Target rows and draft of a single row."""
    ids = torch.tensor([tokens])
    probs = None if q is None else torch.tensor([q])
    chain = Draft.chain(ids, SamplingScheme.ONE_HOT if q is None else SamplingScheme.IID, probs=probs, **draft)
    return TargetRows(torch.tensor([p]).log(), chain, Sampling()), chain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
def test_stop_probability_is_a_distribution(kind: str, form: str) -> None:
    random = seeded(5)
    p, q = random_tables(kind, 4, 3, random, narrow=form == "sparse")
    draft, _ = propose(form, q, random, random_stops(4, 3, random))
    target = target_rows(logits_of(p), draft, PLAIN)
    stop_probs = SpeculativeSampling().stop_probs(target, draft)
    assert stop_probs.shape == (len(draft.tokens), 4) and (stop_probs >= 0).all()
    assert torch.allclose(stop_probs.sum(1), torch.ones(len(stop_probs), dtype=torch.float64), rtol=0, atol=1e-15)
    beyond = torch.arange(4) > draft.offered_depth.unsqueeze(1)
    assert (stop_probs[beyond] == 0).all()


@pytest.mark.parametrize("q", [[[0.5, 0.5, 0.0]] * 2, None], ids=["dense", "one_hot"])
def test_x1_a_token_without_target_mass_is_never_kept(q: list[list[float]] | None) -> None:
    target, draft = one_round([[0.0, 0.4, 0.6]] * 3, [0, 1], q)
    stop_probs = SpeculativeSampling().stop_probs(target, draft)
    for uniform in (0.0, 0.5, ALMOST_ONE.item()):
        assert draw(stop_probs, torch.tensor([uniform], dtype=torch.float64)) == 0


@pytest.mark.parametrize("support", [None, torch.tensor([[[0, 1]] * 2])], ids=["dense", "sparse"])
def test_x2_an_offered_token_without_draft_mass_has_no_distribution(support: Tensor | None) -> None:
    q = [[0.5, 0.5, 0.0]] * 2 if support is None else [[0.5, 0.5]] * 2
    target, draft = one_round([[0.2, 0.2, 0.6]] * 3, [0, 2], q, support=support)
    assert SpeculativeSampling().stop_probs(target, draft).sum(1).isnan().all()
    shorter = draft.offered(torch.tensor([[True, False]]))
    stop_probs = SpeculativeSampling().stop_probs(target, shorter)
    assert torch.allclose(stop_probs, torch.tensor([[0.6, 0.4, 0.0]]))


@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
def test_x3_no_residual_means_p(form: str) -> None:
    probs = [0.0, 1.0, 0.0] if form == "one_hot" else [0.25, 0.75, 0.0]
    q = {"dense": [probs], "sparse": [[0.75, 0.25]], "one_hot": None}[form]
    support = torch.tensor([[[1, 0]]]) if form == "sparse" else None
    target, draft = one_round([probs] * 2, [1], q, support=support)
    target.all_probs = torch.tensor([[probs] * 2])  # bitwise equal, unlike the softmax of log p
    next_token_probs = SpeculativeSampling().next_token_probs(target, draft, torch.tensor([0]))
    assert torch.equal(next_token_probs, torch.tensor([probs]))


def test_x5_an_empty_draft_is_a_plain_target_step() -> None:
    logits = torch.randn(2, 1, 5, generator=seeded(6))
    draft = Draft.empty(2, torch.device("cpu"))
    target = TargetRows(logits, draft, Sampling())
    assert torch.equal(SpeculativeSampling().stop_probs(target, draft), torch.ones(2, 1))
    next_token_probs = SpeculativeSampling().next_token_probs(target, draft, torch.zeros(2, dtype=torch.int64))
    assert torch.equal(next_token_probs, logits[:, 0].softmax(1))


def test_a_draft_with_nothing_offered_is_a_plain_target_step() -> None:
    target, draft = one_round([[0.2, 0.2, 0.6]] * 3, [0, 2], [[0.9, 0.1, 0.0]] * 2, valid=torch.zeros(1, 2).bool())
    assert torch.equal(SpeculativeSampling().stop_probs(target, draft), torch.tensor([[1.0, 0.0, 0.0]]))
    next_token_probs = SpeculativeSampling().next_token_probs(target, draft, torch.tensor([0]))
    assert torch.allclose(next_token_probs, torch.tensor([[0.2, 0.2, 0.6]]))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("q", [[[0.5, 0.5, 0.0]] * 2, None], ids=["dense", "one_hot"])
def test_x15_nan_logits_leave_no_distribution(temperature: float, q: list[list[float]] | None) -> None:
    target, draft = one_round([[0.0, float("nan"), 0.6], *[[0.2, 0.2, 0.6]] * 2], [0, 1], q)
    target = TargetRows(target.logits, draft, Sampling(temperature=temperature))
    assert SpeculativeSampling().stop_probs(target, draft).sum(1).isnan().all()


def test_chains_only() -> None:
    verifier = SpeculativeSampling()
    assert verifier.guarantee is Guarantee.EXACT
    for scheme in SamplingScheme:
        verifier.check(scheme, Shape.CHAIN)
        for shape in (Shape.TREE, Shape.CHAINS):
            with pytest.raises(ValueError, match=f"verifier=speculative_sampling.*{shape.name}.*verifier=.*drafter="):
                verifier.check(scheme, shape)
