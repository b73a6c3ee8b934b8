"""Chains grown node by node: exact by enumeration with early stops, biased with dropped nodes."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from framework.conformance.enumeration import output_distribution, target_distribution, total_variation
from framework.conformance.toy_distributions import KINDS, Tables, logits_of, random_tables
from framework.core.draft import Draft, DraftedNode, SamplingScheme
from framework.core.sampling import Sampling, nucleus
from framework.drafting.chain_builder import ChainBuilder
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.verifiers.speculative_sampling import SpeculativeSampling

ROUNDING = 1e-12
BIASED = 1e-3
WIDTH, GAMMA = 3, 3
GREEDY = Sampling(temperature=0)


def grow(logits: list[Tensor], **changes: object) -> tuple[ChainBuilder, Draft]:
    """Feed a chain logits [B, V] while it grows."""
    num_rows = len(logits[0])
    settings = {
        "gamma": len(logits),
        "active": torch.ones(num_rows, dtype=torch.bool),
        "sampling": Sampling(),
        "uniforms": torch.full((num_rows, len(logits)), 0.5, dtype=torch.float64),
        "should_continue": None,
    }
    chain = ChainBuilder(**(settings | changes))
    for row in logits:
        if not chain.add(row):
            break
    return chain, chain.draft()


# No uniform selects a token of subnormal mass.
DRAWABLE = [kind for kind in KINDS if kind not in ("subnormal_q", "subnormal_both")]


def every_chain(
    q: Tables, *, top_k: int | None = None, top_p: float | None = None, **settings: object
) -> tuple[Draft, Tensor]:
    """All chains from q, or its top_k or top_p likeliest tokens, grown from uniforms that select them.

    Returns:
        the chains, and the probability of each.
    """
    paths = torch.cartesian_prod(*[torch.arange(top_k or WIDTH)] * GAMMA)  # indices into the truncated distributions
    weights, distributions, uniforms, drawn = torch.ones(len(paths), dtype=torch.float64), [], [], []
    prefix = torch.zeros(len(paths), dtype=torch.int64)
    for depth, table in enumerate(q):
        entry, probs = paths[:, depth : depth + 1], table[prefix]
        masses, tokens = probs.topk(top_k) if top_k else (probs, torch.arange(WIDTH).expand_as(probs))
        masses = masses / masses.sum(1, keepdim=True)
        masses = masses if top_p is None else nucleus(masses, top_p)
        mass = masses.gather(1, entry).squeeze(1)
        uniforms.append(masses.cumsum(1).gather(1, entry).squeeze(1) - mass / 2)
        weights, distributions = weights * mass, [*distributions, probs]
        drawn.append(tokens.gather(1, entry).squeeze(1))
        prefix = prefix * WIDTH + drawn[-1]
    possible = weights > 0
    given = {"uniforms": torch.stack(uniforms, 1)[possible], "top_k": top_k, "top_p": top_p} | settings
    _, draft = grow([probs[possible].log() for probs in distributions], **given)
    assert torch.equal(draft.tokens, torch.stack(drawn, 1)[possible][:, : draft.num_nodes])
    return draft, weights[possible]


def stopping_at(threshold: float) -> dict[str, object]:
    return {"should_continue": ConfidenceThreshold(max_gamma=GAMMA, threshold=threshold).should_continue}


@pytest.mark.parametrize("threshold", [0, 0.3, 0.6, 0.9, 1])
@pytest.mark.parametrize("kind", DRAWABLE)
def test_stopping_after_a_weak_token_is_exact(kind: str, threshold: float) -> None:
    for seed in range(5):
        p, q = random_tables(kind, WIDTH, GAMMA, torch.Generator().manual_seed(seed))
        draft, weights = every_chain(q, **stopping_at(threshold))
        probs = output_distribution(SpeculativeSampling(), logits_of(p), draft, weights, Sampling())
        assert total_variation(probs, target_distribution(logits_of(p), Sampling())) <= ROUNDING, seed


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("kind", DRAWABLE)
def test_drawing_from_the_likeliest_only_is_exact(kind: str, top_k: int) -> None:
    for seed in range(5):
        p, q = random_tables(kind, WIDTH, GAMMA, torch.Generator().manual_seed(seed))
        draft, weights = every_chain(q, top_k=top_k)
        assert draft.probs.shape == draft.support.shape == (len(weights), GAMMA, top_k)
        probs = output_distribution(SpeculativeSampling(), logits_of(p), draft, weights, Sampling())
        assert total_variation(probs, target_distribution(logits_of(p), Sampling())) <= ROUNDING, seed


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("top_p", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("kind", DRAWABLE)
def test_drawing_from_the_nucleus_only_is_exact(kind: str, top_p: float, top_k: int | None) -> None:
    for seed in range(3):
        p, q = random_tables(kind, WIDTH, GAMMA, torch.Generator().manual_seed(seed))
        draft, weights = every_chain(q, top_k=top_k, top_p=top_p)
        probs = output_distribution(SpeculativeSampling(), logits_of(p), draft, weights, Sampling())
        assert total_variation(probs, target_distribution(logits_of(p), Sampling())) <= ROUNDING, seed


def test_drawing_from_the_likeliest_and_claiming_all_is_caught() -> None:
    for seed in range(5):
        p, q = random_tables("random", WIDTH, GAMMA, torch.Generator().manual_seed(seed))
        draft, weights = every_chain(q, top_k=2)
        claimed = replace(draft, probs=draft.probs * 0.8)  # as if other tokens had a fifth of q
        probs = output_distribution(SpeculativeSampling(), logits_of(p), claimed, weights, Sampling())
        assert total_variation(probs, target_distribution(logits_of(p), Sampling())) > BIASED, seed


def test_dropping_the_weak_token_itself_is_caught() -> None:
    for seed in range(5):
        p, q = random_tables("random", WIDTH, GAMMA, torch.Generator().manual_seed(seed))
        draft, weights = every_chain(q, **stopping_at(0.4))
        assert not draft.valid.all() and draft.num_nodes == GAMMA
        dropped = draft.offered((draft.prob_of_tokens() >= 0.4).cumprod(1).bool())
        probs = output_distribution(SpeculativeSampling(), logits_of(p), dropped, weights, Sampling())
        assert total_variation(probs, target_distribution(logits_of(p), Sampling())) > BIASED, seed


# Row 0 is confident (.9) in its first node, not (.5) in its second; row 1 never is.
SURE, UNSURE = [0.9, 0.05, 0.05], [0.5, 0.25, 0.25]
DISTRIBUTIONS = [torch.tensor([SURE, UNSURE]), torch.tensor([UNSURE, UNSURE]), torch.tensor([SURE, SURE])]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["T=0", "T=1"])
def test_a_row_ends_after_its_weak_token_and_the_chain_with_the_last_row(sampling: Sampling) -> None:
    threshold = ConfidenceThreshold(max_gamma=3, threshold=0.7)
    lowest = torch.zeros(2, 3, dtype=torch.float64)  # they draw token 0, the likeliest
    distributions = [probs.log() for probs in DISTRIBUTIONS]
    chain, draft = grow(distributions, sampling=sampling, uniforms=lowest, should_continue=threshold.should_continue)
    assert draft.tokens.tolist() == [[0, 0], [0, 0]] and chain.num_nodes == 2
    assert draft.valid.tolist() == [[True, True], [True, False]]
    assert draft.scheme is (SamplingScheme.ONE_HOT if sampling.greedy else SamplingScheme.IID)
    assert (draft.probs is None) == sampling.greedy


def test_a_finished_row_keeps_nobody_drafting() -> None:
    threshold = ConfidenceThreshold(max_gamma=3, threshold=0.7)
    active = torch.tensor([False, True])
    _, draft = grow(
        [probs.log() for probs in DISTRIBUTIONS],
        active=active,
        sampling=GREEDY,
        should_continue=threshold.should_continue,
    )
    assert draft.num_nodes == 1 and draft.valid[1].tolist() == [True]


def test_the_confidence_is_what_the_drafter_gave_to_its_own_token() -> None:
    asked: list[Tensor] = []

    def keep(node: DraftedNode) -> Tensor:
        asked.append(node.confidence)
        assert node.depth == len(asked)
        return torch.ones_like(node.entry, dtype=torch.bool)

    uniforms = torch.tensor([[0.92, 0.6, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64)
    logits = [probs.log() for probs in DISTRIBUTIONS]
    _, draft = grow(logits, uniforms=uniforms, should_continue=keep)
    assert draft.tokens.tolist() == [[1, 1, 0], [0, 2, 0]] and draft.valid.all()
    # After every node but the last: nothing depends on the last one.
    assert torch.allclose(torch.stack(asked), torch.tensor([[0.05, 0.5], [0.25, 0.25]]))
    asked.clear()
    grow(logits, uniforms=uniforms, should_continue=keep, sampling=Sampling(top_k=1))
    assert torch.allclose(torch.stack(asked)[0], torch.ones(2))
    asked.clear()
    grow(logits, should_continue=keep, sampling=GREEDY)
    assert torch.allclose(torch.stack(asked), torch.tensor([[0.9, 0.5], [0.5, 0.5]]))


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(temperature=0.5), Sampling(top_p=0.6)], ids=str)
def test_a_distribution_is_standardised_like_the_logits_it_stands_for(sampling: Sampling) -> None:
    probs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).softmax(1)
    uniforms = torch.rand(50, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    settings = {"gamma": 1, "active": torch.ones(50).bool(), "sampling": sampling, "uniforms": uniforms}
    by_distribution, by_logits = (ChainBuilder(**settings, should_continue=None) for _ in range(2))
    by_distribution.add_probs(probs)
    by_logits.add(probs.log())
    got, expected = by_distribution.draft(), by_logits.draft()
    assert torch.equal(got.tokens, expected.tokens) and got.valid.all()
    if sampling.greedy:
        assert got.probs is None
    else:
        assert torch.allclose(got.probs, expected.probs, rtol=0, atol=1e-6)


def test_confidence_of_half_precision_logits_is_computed_in_float32() -> None:
    logits, nodes = torch.randn(2, 50).bfloat16(), list[DraftedNode]()

    def should_continue(node: DraftedNode) -> Tensor:
        nodes.append(node)
        return torch.ones(2, dtype=torch.bool)

    grow([logits, logits], sampling=GREEDY, should_continue=should_continue)
    assert torch.equal(nodes[0].probs, logits.float().softmax(1))
