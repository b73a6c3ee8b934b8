"""Acceptance rules, enumerated on random distributions: zeros, ties, tiny masses, equal and disjoint p, q."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from framework.conformance.enumeration import (
    chains,
    every_draft,
    output_distribution,
    target_distribution,
    total_variation,
)
from framework.conformance.toy_distributions import Tables, logits_of
from framework.core.draft import Draft, SamplingScheme
from framework.core.sampling import Sampling
from framework.verifiers.lenience import Lenience
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.fuzzing import fuzz

ROUNDING = 1e-12
MASSES = st.sampled_from([1.0, 0.0, 0.5, 3.0, 1e-7, 1e-16, 1e-300, 0.1])  # few values, for ties
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([1.0, 0.0, 0.3, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 9]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
)


@dataclass(frozen=True)
class Toy:
    """Every draft of a drafter with its weight, and the target's tables before temperature."""

    width: int
    logits: Tables
    draft: Draft
    weights: Tensor  # [B] float64


def distributions(width: int) -> st.SearchStrategy[list[float]]:
    masses = st.lists(MASSES, min_size=width, max_size=width).filter(any)
    return masses.map(lambda row: [mass / sum(row) for mass in row])


def spread(palette: list, depth: int, width: int, order: random.Random) -> list[list]:
    """One of a few items after each prefix: hypothesis chooses items, not hundreds of entries."""
    return [order.choices(palette, k=width**level) for level in range(depth)]


def apart(p: Tables, q: Tables, cut: int) -> tuple[Tables, Tables]:
    """Restrict p to tokens before `cut` and q to the others; empty ones become one-hot."""
    kept = torch.arange(len(p[0][0])) < cut

    def within(table: Tensor, mask: Tensor, sole: int) -> Tensor:
        masses = table * mask
        masses[masses.sum(1) == 0, sole] = 1.0
        return masses / masses.sum(1, keepdim=True)

    return [within(table, kept, 0) for table in p], [within(table, ~kept, -1) for table in q]


def supports_of(q: Tables, extra: int, order: random.Random) -> Tables:
    """[V ** i, S] after each prefix: positive-mass tokens and up to `extra` others, shuffled."""
    width = q[0].shape[1]
    size = min(width, extra + max(int((table > 0).sum(1).max()) for table in q))
    shuffled = torch.tensor(order.sample(range(size), size))
    return [table.argsort(1, descending=True)[:, shuffled] for table in q]


@st.composite
def toys(draw: Callable, samplings: st.SearchStrategy[Sampling]) -> tuple[Toy, Sampling]:
    width, gamma = draw(st.integers(2, 5)), draw(st.sampled_from([2, 1, 3]))
    sampling, order = draw(samplings), draw(st.randoms(use_true_random=False))
    palettes = [draw(st.lists(distributions(width), min_size=1, max_size=4)) for _ in range(2)]
    p, q = (
        [torch.tensor(table, dtype=torch.float64) for table in spread(palette, depth, width, order)]
        for palette, depth in zip(palettes, (gamma + 1, gamma), strict=True)
    )
    relation = draw(st.sampled_from(["any", "equal", "disjoint"]))
    if relation == "equal":
        p = [*q, p[-1]]
    if relation == "disjoint":
        p, q = apart(p, q, draw(st.integers(1, width - 1)))
    logits = logits_of(p)
    if draw(st.booleans()):  # most drafters apply the target's sampling
        q = [sampling.probs(table) for table in logits_of(q)]
    stops = draw(st.lists(st.booleans(), min_size=1, max_size=3))
    form = draw(st.sampled_from(["dense", "sparse", "one_hot"]))
    draft, weights = every_draft(
        q,
        parent=chains(1, gamma),
        scheme=SamplingScheme.ONE_HOT if form == "one_hot" else SamplingScheme.IID,
        offered=[torch.tensor(table) for table in spread(stops, gamma, width, order)],
        supports=supports_of(q, draw(st.integers(0, 2)), order) if form == "sparse" else None,
    )
    return Toy(width, logits, draft, weights), sampling


@fuzz(50, drawn=toys(SAMPLINGS))
def test_speculative_sampling_is_exact(drawn: tuple[Toy, Sampling]) -> None:
    toy, sampling = drawn
    emitted = output_distribution(SpeculativeSampling(), toy.logits, toy.draft, toy.weights, sampling)
    assert total_variation(emitted, target_distribution(toy.logits, sampling)) <= ROUNDING


@fuzz(
    20,
    drawn=toys(SAMPLINGS.filter(lambda sampling: not sampling.greedy)),
    lenience=st.one_of(st.sampled_from([1.0, 0.5, 1e-9]), st.floats(0, 1, exclude_min=True)),
)
def test_lenience_keeps_its_cap(drawn: tuple[Toy, Sampling], lenience: float) -> None:
    """After every possible prefix, no token's probability exceeds p / l."""
    toy, sampling = drawn
    emitted = output_distribution(Lenience(lenience=lenience), toy.logits, toy.draft, toy.weights, sampling)
    assert abs(emitted.sum() - 1) <= ROUNDING
    for position, table in enumerate(toy.logits):
        together = emitted.view(toy.width**position, toy.width, -1).sum(2)  # prefix and next token
        cap = together.sum(1, keepdim=True) * (sampling.probs(table) / lenience).clamp(max=1)
        assert (together <= cap + ROUNDING).all()
    if lenience == 1:
        assert total_variation(emitted, target_distribution(toy.logits, sampling)) <= ROUNDING


@fuzz(25, drawn=toys(st.just(Sampling(temperature=0))), lenience=st.sampled_from([0.9, 0.5, 1.0, 1e-9]))
def test_greedy_lenience_keeps_to_tokens_near_the_best(drawn: tuple[Toy, Sampling], lenience: float) -> None:
    """At temperature 0, output tokens are at least l times as likely as the best one."""
    toy, sampling = drawn
    emitted = output_distribution(Lenience(lenience=lenience), toy.logits, toy.draft, toy.weights, sampling)
    assert abs(emitted.sum() - 1) <= ROUNDING
    for position, table in enumerate(toy.logits):
        together = emitted.view(toy.width**position, toy.width, -1).sum(2)
        p = table.exp()
        assert (together[p < lenience * p.amax(1, keepdim=True) * (1 - 1e-9)] <= ROUNDING).all()
