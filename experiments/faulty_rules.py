"""Known faults of acceptance rules and of what they are given, seen by enumeration on random toy laws."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from framework.draft import Draft, Law, TargetRows
from framework.enumeration import TREES, chains, every_draft, output_law, target_law, total_variation
from framework.random_tables import logits_of, random_tables
from framework.sampling import Sampling
from framework.verifiers.k_seq import KSeq
from framework.verifiers.pooled import Pooled
from framework.verifiers.recursive_rejection import RecursiveRejection
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Verifier

SEEDS = range(10)  # of random tables
CHAIN, TWO_CHAINS, TREE = chains(1, 2), chains(2, 2), TREES[2]

Change = Callable[[Draft, Tensor], tuple[Draft, Tensor]]


def _worst(measured: Callable[[int, bool], float]) -> Callable[[bool], float]:
    return lambda faulty: max(measured(seed, faulty) for seed in SEEDS)


def _emitted(verifier: Verifier, seed: int, change: Change, parent: Sequence[int]) -> float:
    """Total variation of a rule whose drafts are changed behind its back; gamma 2, vocabulary 3, temperature 0.7."""
    p, q = random_tables("random", 3, 2, torch.Generator().manual_seed(seed))
    draft, weights = change(*every_draft(q, parent=parent, law=Law.IID))
    sampling = Sampling(temperature=0.7)
    emitted = output_law(verifier, logits_of(p), draft, weights, sampling)
    return total_variation(emitted, target_law(logits_of(p), sampling))


def _as_drawn(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    return draft, weights


def _rule(
    faulty_rule: Verifier, *, instead_of: Verifier | None = None, parent: Sequence[int] = CHAIN
) -> Callable[[bool], float]:
    """The fault lies in the rule."""
    honest = instead_of or SpeculativeSampling()
    return _worst(lambda seed, faulty: _emitted(faulty_rule if faulty else honest, seed, _as_drawn, parent))


def _drafting(
    change: Change, *, verifier: Verifier | None = None, parent: Sequence[int] = CHAIN
) -> Callable[[bool], float]:
    """The fault lies in what is drafted."""
    rule = verifier or SpeculativeSampling()
    return _worst(lambda seed, faulty: _emitted(rule, seed, change if faulty else _as_drawn, parent))


def _always_likeliest(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """Only the chain of likeliest tokens is drafted; its probs stay the softmax."""
    assert draft.probs is not None
    chosen = (draft.tokens == draft.probs.argmax(2)).all(1)
    return draft.rows(chosen), torch.ones(1, dtype=torch.float64)


def _drop_weak(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    return draft.offered((draft.prob_of_tokens() > 0.3).cumprod(1).bool()), weights


def _likelier_of_two(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """Two chains are drawn, and the one that the drafter itself finds likelier is offered."""
    below = weights < weights.unsqueeze(1)
    level = weights == weights.unsqueeze(1)
    return draft, weights * (2 * (below * weights).sum(1) + (level * weights).sum(1))


def _without_duplicates(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    """A sibling that repeats an elder is dropped with what hangs on it; the others say that they are independent."""
    same = draft.tokens.unsqueeze(2) == draft.tokens.unsqueeze(1)
    repeats = (draft.tree.elder & same).any(2)
    return draft.offered(~repeats & ~draft.tree.behind(repeats)), weights


class _OneUniform(SpeculativeSampling):
    """Node i is kept if u < p / q holds for it and all before it, with the same u."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        keep = (target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1)
        reach = torch.cat([torch.ones_like(keep[:, :1]), keep.cummin(1).values], 1)
        return reach - torch.cat([reach[:, 1:], torch.zeros_like(reach[:, :1])], 1)


class _Bfloat16Coins(SpeculativeSampling):
    """Uniforms drawn in bfloat16 are multiples of 1/256."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        keep = ((target.prob_of(draft.tokens) / draft.prob_of_tokens()).clamp(max=1) * 256).ceil() / 256
        reach = torch.cat([torch.ones_like(keep[:, :1]), keep.cumprod(1)], 1)
        return reach * torch.cat([1 - keep, torch.ones_like(keep[:, :1])], 1)


class _ResidualIsP(SpeculativeSampling):
    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        return target.probs(stop)


class _RawLastRow(SpeculativeSampling):
    """The token behind a fully accepted draft is drawn from the softmax, without temperature."""

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        raw = target.logits[torch.arange(len(stop)), stop].softmax(1)
        return torch.where((stop == draft.num_nodes).unsqueeze(1), raw, super().replacement(target, draft, stop))


class _IndependentTests(KSeq):
    """Each of the K drafts is tested as if it were alone, and what follows is left over by one of them."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        pooled = Pooled.of(draft)
        tree = pooled.draft.tree
        keep = (pooled.prob_of_tokens(target) / draft.prob_of_tokens()).clamp(max=1)
        return tree.along(pooled.at_first(keep * tree.over_elders(1 - keep))) * tree.over_children(1 - keep)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        p, children = target.probs(stop), Pooled.of(draft).children(stop)
        rest = (p - draft.probs_of_nodes(children.int().argmax(1), p.shape[1])).clamp(min=0)
        return torch.where(children.any(1, keepdim=True), rest / rest.sum(1, keepdim=True), p)


RULE_FAULTS: dict[str, Callable[[bool], float]] = {
    "the likeliest token is drafted, softmax reported as q": _drafting(_always_likeliest),
    "a weak token is dropped instead of stopped after": _drafting(_drop_weak),
    "sampled nodes are re-ranked by their own probability": _drafting(_likelier_of_two),
    "one uniform for all positions": _rule(_OneUniform()),
    "coins in bfloat16": _rule(_Bfloat16Coins()),
    "the residual is the full p": _rule(_ResidualIsP()),
    "raw softmax behind a full acceptance": _rule(_RawLastRow()),
    "K independent ordinary tests instead of K-SEQ": _rule(_IndependentTests(), instead_of=KSeq(), parent=TWO_CHAINS),
    "duplicates among independent siblings are dropped": _drafting(
        _without_duplicates, verifier=RecursiveRejection(), parent=TREE
    ),
}
"""The largest total variation of an output's law from the target's, without the fault or with it."""
