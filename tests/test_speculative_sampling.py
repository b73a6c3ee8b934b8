"""Speculative sampling, proved by enumeration: no sampling error, so the bounds are those of rounding."""

import pytest
import torch
from enumeration import (
    KINDS,
    Tables,
    along,
    chosen_draft,
    every_draft,
    joint_law,
    log,
    offers,
    output_law,
    supports_of,
    total_variation,
    toy,
)
from scipy.stats import chisquare
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.sampling import Sampling, draw
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee

ROUNDING = 1e-12
BIASED = 1e-3
SIZES = [(width, gamma, seed) for width in (3, 4, 5) for gamma in (1, 2, 3) for seed in range(5)]
ALMOST_ONE = torch.nextafter(torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def propose(form: str, q: Tables, random: torch.Generator, offered: Tables | None) -> tuple[Draft, Tensor]:
    if form == "one_hot":
        return chosen_draft(q, offered=offered)
    return every_draft(q, offered=offered, supports=supports_of(q, random) if form == "sparse" else None)


@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
@pytest.mark.parametrize("kind", KINDS)
def test_output_follows_the_targets_law(kind: str, form: str, ragged: bool) -> None:
    for width, gamma, seed in SIZES:
        random = seeded(seed)
        p, q = toy(kind, width, gamma, random, narrow=form == "sparse")
        draft, weights = propose(form, q, random, offers(width, gamma, random) if ragged else None)
        law = output_law(SpeculativeSampling(), log(p), draft, weights)
        assert total_variation(law, joint_law(p)) <= ROUNDING, (width, gamma, seed)


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
def test_output_follows_the_targets_law_under_every_sampling(sampling: Sampling, form: str) -> None:
    for width, gamma, seed in SIZES:
        random = seeded(seed)
        p, q = toy("random", width, gamma, random, narrow=form == "sparse")
        q = [sampling.probs(table) for table in log(q)]
        draft, weights = propose(form, q, random, None)
        law = output_law(SpeculativeSampling(), log(p), draft, weights, sampling)
        truth = joint_law([sampling.probs(table) for table in log(p)])
        assert total_variation(law, truth) <= ROUNDING, (width, gamma, seed)


def test_float32_laws_are_exact_up_to_their_rounding() -> None:
    for width, gamma, seed in SIZES:
        p, q = toy("random", width, gamma, seeded(seed))
        draft, weights = every_draft([table.float() for table in q])
        law = output_law(SpeculativeSampling(), [table.log().float() for table in p], draft, weights)
        assert total_variation(law, joint_law(p)) <= 1e-6


def test_support_may_be_padded_with_ids_without_mass() -> None:
    random = seeded(0)
    p, q = toy("random", 5, 2, random, narrow=True)
    supports = supports_of(q, random)
    draft, weights = every_draft(q, supports=supports)
    assert draft.probs is not None and draft.support is not None
    padded = Draft.chain(
        draft.tokens,
        draft.law,
        probs=torch.cat([draft.probs, torch.zeros_like(draft.probs)], 2),
        support=torch.cat([draft.support, draft.tokens.unsqueeze(2).expand_as(draft.support)], 2),
    )
    law = output_law(SpeculativeSampling(), log(p), padded, weights)
    assert total_variation(law, joint_law(p)) <= ROUNDING


def test_drawn_rounds_follow_the_targets_law() -> None:
    """The same through draw and float32 laws. Chi-square of 27 cells; false-alarm rate 1e-7, and the seed is fixed."""
    width, gamma, rounds = 3, 2, 200_000
    random = seeded(1)
    p, q = toy("random", width, gamma, random)
    p = [0.5 * table + 0.5 / width for table in p]  # no cell too rare for a chi-square
    uniforms = torch.rand(rounds, 2 * gamma + 2, dtype=torch.float64, generator=random)
    tokens = torch.empty(rounds, 0, dtype=torch.int64)
    for depth in range(gamma):
        law = along(q[: depth + 1], tokens, width)[:, -1].float()
        tokens = torch.cat([tokens, draw(law, uniforms[:, depth]).unsqueeze(1)], 1)
    draft = Draft.chain(tokens, Law.IID, probs=along(q, tokens, width).float())
    target = TargetRows(along(log(p), tokens, width).float(), draft, Sampling())
    verifier = SpeculativeSampling()
    stop = draw(verifier.stop_law(target, draft), uniforms[:, gamma])
    emitted = torch.cat([tokens, torch.zeros(rounds, 1, dtype=torch.int64)], 1)
    following = draw(verifier.replacement(target, draft, stop), uniforms[:, gamma + 1])
    emitted.scatter_(1, stop.unsqueeze(1), following.unsqueeze(1))
    for depth in range(1, gamma + 1):  # rows that ended earlier go on with the target
        own = draw(along(p[: depth + 1], emitted, width)[:, -1], uniforms[:, gamma + 1 + depth])
        emitted[:, depth] = torch.where(stop < depth, own, emitted[:, depth])
    cells = (emitted * width ** torch.arange(gamma, -1, -1)).sum(1)
    counts, expected = torch.bincount(cells, minlength=width ** (gamma + 1)), joint_law(p) * rounds
    assert expected.min() > 5
    assert chisquare(counts, expected).pvalue > 1e-7


# Negative controls: what the enumeration must catch.


class ResidualIsP(SpeculativeSampling):
    """After a rejection, draws from p in full."""

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        return target.probs(stop)


class RawLastRow(SpeculativeSampling):
    """Draws the token after a fully kept draft from a softmax without temperature."""

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        raw = target.logits[:, -1].softmax(1)
        return torch.where((stop == draft.num_nodes).unsqueeze(1), raw, super().replacement(target, draft, stop))


@pytest.mark.parametrize("rule", [ResidualIsP(), RawLastRow()], ids=["residual_is_p", "raw_last_row"])
def test_enumeration_catches_a_wrong_replacement(rule: SpeculativeSampling) -> None:
    sampling = Sampling(temperature=0.7)
    p, q = toy("random", 4, 2, seeded(2))
    draft, weights = every_draft(q)
    truth = joint_law([sampling.probs(table) for table in log(p)])
    assert total_variation(output_law(SpeculativeSampling(), log(p), draft, weights, sampling), truth) <= ROUNDING
    assert total_variation(output_law(rule, log(p), draft, weights, sampling), truth) > BIASED


def test_enumeration_catches_chosen_tokens_reported_as_drawn() -> None:
    p, q = toy("random", 4, 2, seeded(3))
    chosen, weights = chosen_draft(q)
    reported = Draft.chain(chosen.tokens, Law.IID, probs=along(q, chosen.tokens, 4))
    assert total_variation(output_law(SpeculativeSampling(), log(p), chosen, weights), joint_law(p)) <= ROUNDING
    assert total_variation(output_law(SpeculativeSampling(), log(p), reported, weights), joint_law(p)) > BIASED


def test_stopping_after_a_weak_token_is_exact_and_dropping_it_is_caught() -> None:
    for seed in range(5):
        p, q = toy("random", 3, 3, seeded(seed))
        draft, weights = every_draft(q)
        strong = (draft.prob_of_tokens() > 0.3).cumprod(1).bool()
        assert not strong.all() and strong.any(0).all()
        stopped = draft.offered(torch.cat([torch.ones_like(strong[:, :1]), strong[:, :-1]], 1))
        dropped = draft.offered(strong)
        assert total_variation(output_law(SpeculativeSampling(), log(p), stopped, weights), joint_law(p)) <= ROUNDING
        assert total_variation(output_law(SpeculativeSampling(), log(p), dropped, weights), joint_law(p)) > BIASED


# Edge cases, by their numbers in the algorithm reference.


def one_round(p: list[list[float]], tokens: list[int], q: list[list[float]] | None, **draft: object) -> tuple:
    """Target rows and draft of a single row."""
    ids = torch.tensor([tokens])
    probs = None if q is None else torch.tensor([q])
    chain = Draft.chain(ids, Law.ONE_HOT if q is None else Law.IID, probs=probs, **draft)
    return TargetRows(torch.tensor([p]).log(), chain, Sampling()), chain


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
def test_stop_law_is_a_law(kind: str, form: str) -> None:
    random = seeded(5)
    p, q = toy(kind, 4, 3, random, narrow=form == "sparse")
    draft, _ = propose(form, q, random, offers(4, 3, random))
    target = TargetRows(along(log(p), draft.tokens, 4), draft, Sampling())
    stop_law = SpeculativeSampling().stop_law(target, draft)
    assert stop_law.shape == (len(draft.tokens), 4) and (stop_law >= 0).all()
    assert torch.allclose(stop_law.sum(1), torch.ones(len(stop_law), dtype=torch.float64), rtol=0, atol=1e-15)
    beyond = torch.arange(4) > draft.num_valid.unsqueeze(1)
    assert (stop_law[beyond] == 0).all()


@pytest.mark.parametrize("q", [[[0.5, 0.5, 0.0]] * 2, None], ids=["dense", "one_hot"])
def test_x1_a_token_without_target_mass_is_never_kept(q: list[list[float]] | None) -> None:
    target, draft = one_round([[0.0, 0.4, 0.6]] * 3, [0, 1], q)
    stop_law = SpeculativeSampling().stop_law(target, draft)
    for uniform in (0.0, 0.5, ALMOST_ONE.item()):
        assert draw(stop_law, torch.tensor([uniform], dtype=torch.float64)) == 0


@pytest.mark.parametrize("support", [None, torch.tensor([[[0, 1]] * 2])], ids=["dense", "sparse"])
def test_x2_an_offered_token_without_draft_mass_has_no_law(support: Tensor | None) -> None:
    q = [[0.5, 0.5, 0.0]] * 2 if support is None else [[0.5, 0.5]] * 2
    target, draft = one_round([[0.2, 0.2, 0.6]] * 3, [0, 2], q, support=support)
    assert SpeculativeSampling().stop_law(target, draft).sum(1).isnan().all()
    shorter = draft.offered(torch.tensor([[True, False]]))
    stop_law = SpeculativeSampling().stop_law(target, shorter)
    assert torch.allclose(stop_law, torch.tensor([[0.6, 0.4, 0.0]]))


@pytest.mark.parametrize("form", ["dense", "sparse", "one_hot"])
def test_x3_no_residual_means_p(form: str) -> None:
    law = [0.0, 1.0, 0.0] if form == "one_hot" else [0.25, 0.75, 0.0]
    q = {"dense": [law], "sparse": [[0.75, 0.25]], "one_hot": None}[form]
    support = torch.tensor([[[1, 0]]]) if form == "sparse" else None
    target, draft = one_round([law] * 2, [1], q, support=support)
    target.all_probs = torch.tensor([[law] * 2])  # equal to the last bit, which a softmax need not be
    replacement = SpeculativeSampling().replacement(target, draft, torch.tensor([0]))
    assert torch.equal(replacement, torch.tensor([law]))


def test_x5_an_empty_draft_is_a_plain_target_step() -> None:
    logits = torch.randn(2, 1, 5, generator=seeded(6))
    draft = Draft.empty(2, torch.device("cpu"))
    target = TargetRows(logits, draft, Sampling())
    assert torch.equal(SpeculativeSampling().stop_law(target, draft), torch.ones(2, 1))
    replacement = SpeculativeSampling().replacement(target, draft, torch.zeros(2, dtype=torch.int64))
    assert torch.equal(replacement, logits[:, 0].softmax(1))


def test_a_draft_with_nothing_offered_is_a_plain_target_step() -> None:
    target, draft = one_round([[0.2, 0.2, 0.6]] * 3, [0, 2], [[0.9, 0.1, 0.0]] * 2, valid=torch.zeros(1, 2).bool())
    assert torch.equal(SpeculativeSampling().stop_law(target, draft), torch.tensor([[1.0, 0.0, 0.0]]))
    replacement = SpeculativeSampling().replacement(target, draft, torch.tensor([0]))
    assert torch.allclose(replacement, torch.tensor([[0.2, 0.2, 0.6]]))


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("q", [[[0.5, 0.5, 0.0]] * 2, None], ids=["dense", "one_hot"])
def test_x15_nan_logits_leave_no_law(temperature: float, q: list[list[float]] | None) -> None:
    target, draft = one_round([[0.0, float("nan"), 0.6], *[[0.2, 0.2, 0.6]] * 2], [0, 1], q)
    target = TargetRows(target.logits, draft, Sampling(temperature=temperature))
    assert SpeculativeSampling().stop_law(target, draft).sum(1).isnan().all()


def test_chains_only() -> None:
    verifier = SpeculativeSampling()
    assert verifier.guarantee is Guarantee.EXACT
    for law in Law:
        verifier.check(law, Shape.CHAIN)
        for shape in (Shape.TREE, Shape.CHAINS):
            with pytest.raises(ValueError, match=f"verifier=speculative_sampling.*{shape.name}.*verifier=.*drafter="):
                verifier.check(law, shape)
