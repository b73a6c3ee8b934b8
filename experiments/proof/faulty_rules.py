"""Injected faults of acceptance rules and drafts, detected by enumeration on random toy distributions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from framework.conformance.enumeration import (
    TREES,
    chains,
    every_draft,
    output_distribution,
    target_distribution,
    total_variation,
)
from framework.conformance.toy_distributions import logits_of, random_tables
from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.sampling import Sampling
from framework.verifiers.k_seq import KSeq
from framework.verifiers.prefix_merging import MergedPrefixes
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Verifier

SEEDS = range(10)  # of the random toy distributions
CHAIN, TWO_CHAINS, TREE = chains(1, 2), chains(2, 2), TREES[2]

Change = Callable[[Draft, Tensor], tuple[Draft, Tensor]]


def _worst(measured: Callable[[int, bool], float]) -> Callable[[bool], float]:
    return lambda faulty: max(measured(seed, faulty) for seed in SEEDS)


def _emitted(verifier: Verifier, seed: int, change: Change, parent: Sequence[int]) -> float:
    """Total variation of a rule's output when its drafts are modified; gamma 2, vocabulary 3, temperature 0.7."""
    p, q = random_tables("random", 3, 2, torch.Generator().manual_seed(seed))
    draft, weights = change(*every_draft(q, parent=parent, scheme=SamplingScheme.IID))
    sampling = Sampling(temperature=0.7)
    emitted = output_distribution(verifier, logits_of(p), draft, weights, sampling)
    return total_variation(emitted, target_distribution(logits_of(p), sampling))


def _as_drawn(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    return draft, weights


def _rule(
    faulty_rule: Verifier, *, instead_of: Verifier | None = None, parent: Sequence[int] = CHAIN
) -> Callable[[bool], float]:
    """Measure a fault in the rule."""
    honest = instead_of or SpeculativeSampling()
    return _worst(lambda seed, faulty: _emitted(faulty_rule if faulty else honest, seed, _as_drawn, parent))


def _drafting(
    change: Change, *, verifier: Verifier | None = None, parent: Sequence[int] = CHAIN
) -> Callable[[bool], float]:
    """Measure a fault in the drafts."""
    rule = verifier or SpeculativeSampling()
    return _worst(lambda seed, faulty: _emitted(rule, seed, change if faulty else _as_drawn, parent))


def _always_likeliest(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """Draft only the chain of likeliest tokens but report the softmax as its probs."""
    assert draft.probs is not None
    chosen = (draft.tokens == draft.probs.argmax(2)).all(1)
    return draft.rows(chosen), torch.ones(1, dtype=torch.float64)


def _drop_weak(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    return draft.offered((draft.prob_of_tokens() > 0.3).cumprod(1).bool()), weights


def _likelier_of_two(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """Draw two chains and offer the one with the higher drafter probability."""
    below = weights < weights.unsqueeze(1)
    level = weights == weights.unsqueeze(1)
    return draft, weights * (2 * (below * weights).sum(1) + (level * weights).sum(1))


def _without_duplicates(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """Drop siblings that repeat an earlier sibling, with their descendants, but keep the scheme IID."""
    same = draft.tokens.unsqueeze(2) == draft.tokens.unsqueeze(1)
    repeats = (draft.tree.elder & same).any(2)
    return draft.offered(~repeats & ~draft.tree.after(repeats)), weights


class _OneUniform(SpeculativeSampling):
    """Accept node i if u < p / q holds for it and all nodes before it, with one shared u."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        keep = (target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1)
        reach = torch.cat([torch.ones_like(keep[:, :1]), keep.cummin(1).values], 1)
        return reach - torch.cat([reach[:, 1:], torch.zeros_like(reach[:, :1])], 1)


class _Bfloat16Coins(SpeculativeSampling):
    """Test nodes with bfloat16 uniforms, which are multiples of 1/256."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        keep = ((target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1) * 256).ceil() / 256
        reach = torch.cat([torch.ones_like(keep[:, :1]), keep.cumprod(1)], 1)
        return reach * torch.cat([1 - keep, torch.ones_like(keep[:, :1])], 1)


class _ResidualIsP(SpeculativeSampling):
    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        return target.probs(stop)


class _RawLastRow(SpeculativeSampling):
    """Draw the token after a fully accepted draft from the softmax without temperature."""

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        raw = target.logits[torch.arange(len(stop)), stop].softmax(1)
        return torch.where((stop == draft.num_nodes).unsqueeze(1), raw, super().next_token_probs(target, draft, stop))


class _IndependentTests(KSeq):
    """Test each of K drafts as if it were the only one, and draw the next token from the residual of a single draft."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        merged = MergedPrefixes.of(draft)
        tree = merged.draft.tree
        keep = (merged.prob_of_tokens(target) / draft.prob_of_tokens()).clamp(max=1)
        return tree.along(merged.at_first(keep * tree.over_elders(1 - keep))) * tree.over_children(1 - keep)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        p, children = target.probs(stop), MergedPrefixes.of(draft).children(stop)
        rest = (p - draft.probs_of_nodes(children.int().argmax(1), p.shape[1])).clamp(min=0)
        return torch.where(children.any(1, keepdim=True), rest / rest.sum(1, keepdim=True), p)


RULE_FAULTS: dict[str, Callable[[bool], float]] = {
    "the likeliest token is drafted, softmax reported as q": _drafting(_always_likeliest),
    "a weak token is dropped instead of stopped after": _drafting(_drop_weak),
    "sampled nodes are re-ranked by their own probability": _drafting(_likelier_of_two),
    "one uniform for all positions": _rule(_OneUniform()),
    "coins in bfloat16": _rule(_Bfloat16Coins()),
    "the residual is the full p": _rule(_ResidualIsP()),
    "raw softmax after a full acceptance": _rule(_RawLastRow()),
    "K independent ordinary tests instead of K-SEQ": _rule(_IndependentTests(), instead_of=KSeq(), parent=TWO_CHAINS),
    "duplicates among independent siblings are dropped": _drafting(
        _without_duplicates, verifier=RecursiveRejection(), parent=TREE
    ),
}
"""Fault: the function that measures the largest total variation from the target, without or with the fault."""
