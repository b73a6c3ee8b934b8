"""Known faults of loops and rules, put in on purpose: a proof that would not see them proves nothing.

Every control is measured twice by the same means, without the fault and with it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from experiments.tiny_drafters import tiny_factory
from framework import engine as loop
from framework.autoregressive import Autoregressive
from framework.draft import Draft, Law, TargetRows
from framework.engine import Engine
from framework.enumeration import chains, every_draft, output_law, target_law, total_variation
from framework.gamma_policies.fixed import Fixed
from framework.random_tables import logits_of, random_tables
from framework.sampling import Sampling
from framework.stopping import Finisher, Stopping
from framework.target import Target
from framework.tiny_models import tiny_target
from framework.uniforms import Uniforms
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Verifier

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]
SEEDS = range(10)  # of random tables


@dataclass(frozen=True)
class Control:
    """One fault and how it shows.

    Attributes:
        fault: what is done wrong.
        measure: what is measured, in words.
        run: measures it, with the fault if told so.
        bound: what an exact loop stays at or below, and the fault must exceed.
    """

    fault: str
    measure: str
    run: Callable[[bool], float]
    bound: float


def controls() -> Iterator[Control]:
    """All of them."""
    for fault, run in RULE_FAULTS.items():
        yield Control(fault, "total variation, by enumeration", run, 1e-3)
    yield Control("tokens leak between rows", "share of tokens unlike plain decoding's", _leaking_rows, 0.0)
    yield Control("stale position ids after a roll-back", "share of tokens unlike plain decoding's", _stale_ids, 0.0)
    yield Control("end-of-text inside a block goes unseen", "share of rows that go on behind it", _unseen_eos, 0.0)
    yield Control("a token with p = 0 is taken at u = 0", "share of tokens without mass", _taken_at_zero, 0.0)
    yield Control("rows of NaN become tokens", "tokens drawn from NaN", _tokens_from_nan, 0.0)


# Faults of rules, seen by enumeration


def _worst(measured: Callable[[int, bool], float]) -> Callable[[bool], float]:
    return lambda faulty: max(measured(seed, faulty) for seed in SEEDS)


def _emitted(verifier: Verifier, seed: int, change: Callable[[Draft, Tensor], tuple[Draft, Tensor]]) -> float:
    """Total variation of a rule whose drafts are changed behind its back; gamma 2, vocabulary 3, temperature 0.7."""
    p, q = random_tables("random", 3, 2, torch.Generator().manual_seed(seed))
    draft, weights = change(*every_draft(q, parent=chains(1, 2), law=Law.IID))
    sampling = Sampling(temperature=0.7)
    emitted = output_law(verifier, logits_of(p), draft, weights, sampling)
    return total_variation(emitted, target_law(logits_of(p), sampling))


def _as_drawn(draft: Draft, weights: Tensor) -> tuple[Draft, Tensor]:
    return draft, weights


def _rule(faulty_rule: Verifier) -> Callable[[bool], float]:
    """The fault lies in the rule."""
    return _worst(lambda seed, faulty: _emitted(faulty_rule if faulty else SpeculativeSampling(), seed, _as_drawn))


def _drafting(change: Callable[[Draft, Tensor], tuple[Draft, Tensor]]) -> Callable[[bool], float]:
    """The fault lies in what is drafted."""
    return _worst(lambda seed, faulty: _emitted(SpeculativeSampling(), seed, change if faulty else _as_drawn))


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


RULE_FAULTS: dict[str, Callable[[bool], float]] = {
    "the likeliest token is drafted, softmax reported as q": _drafting(_always_likeliest),
    "a weak token is dropped instead of stopped after": _drafting(_drop_weak),
    "sampled nodes are re-ranked by their own probability": _drafting(_likelier_of_two),
    "one uniform for all positions": _rule(_OneUniform()),
    "coins in bfloat16": _rule(_Bfloat16Coins()),
    "the residual is the full p": _rule(_ResidualIsP()),
    "raw softmax behind a full acceptance": _rule(_RawLastRow()),
}

# Faults of loops, seen through the real path


def _decoders(target: Target, sampling: Sampling) -> tuple[Autoregressive, Engine]:
    drafter = tiny_factory("small_transformer", target.vocabulary_size)(target=target)
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=Fixed(gamma=3),
        sampling=sampling,
    )
    return Autoregressive(target=target, sampling=sampling), engine


def _unlike_plain(fault: Callable[[Target], AbstractContextManager], faulty: bool) -> float:
    """Share of the tokens of ragged greedy rows at which they have parted from plain decoding."""
    target, stopping, seeds = tiny_target(), Stopping(max_new_tokens=20), list(range(len(RAGGED)))
    plain, engine = _decoders(target, GREEDY)
    expected = plain.generate(RAGGED, stopping=stopping, seeds=seeds).tokens
    with fault(target) if faulty else nullcontext():
        got = engine.generate(RAGGED, stopping=stopping, seeds=seeds).tokens
    pairs = [pair for ours, theirs in zip(got, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    return sum(ours != theirs for ours, theirs in pairs) / len(pairs)


def _leaking_rows(faulty: bool) -> float:
    """Every row takes as many tokens of its draft as the luckiest row of the batch."""
    honest = Finisher.commit

    def commit(self: Finisher, tokens: Tensor, counts: Tensor, healthy: Tensor) -> Tensor:
        return honest(self, tokens, counts.amax().expand_as(counts), healthy)

    return _unlike_plain(lambda target: patch.object(Finisher, "commit", commit), faulty)


def _stale_ids(faulty: bool) -> float:
    """Positions count the tokens that were ever read, rejected ones included."""

    @contextmanager
    def fault(target: Target) -> Iterator[None]:
        honest, read = target.model.model.forward, 0

        def forward(*args: Any, position_ids: Tensor, **rest: Any) -> Any:
            nonlocal read
            first_pass = rest["attention_mask"] is None
            start = 0 if first_pass else read - int(position_ids.min())
            read = (0 if first_pass else read) + position_ids.shape[1]
            return honest(*args, position_ids=(position_ids + start).clamp(max=target.model.context - 1), **rest)

        with patch.object(target.model.model, "forward", forward):
            yield

    return _unlike_plain(fault, faulty)


def _unseen_eos(faulty: bool) -> float:
    """Only the last token of a block is looked at."""
    honest = Finisher._keep

    def keep(self: Finisher, row: int, block: list[int]) -> int:
        before, ends = self._lengths[row], self._stopping
        self.new_tokens[row] += block[:-1]
        self._lengths[row] += len(block) - 1
        kept = honest(self, row, block[-1:]) + len(block) - 1
        self._lengths[row], self._stopping = before, ends
        return kept

    target, eos = tiny_target(vocabulary=5), (0, 1)
    _, engine = _decoders(target, Sampling())
    rows = 64
    with ExitStack() as faults:
        if faulty:
            faults.enter_context(patch.object(Finisher, "_keep", keep))
            faults.enter_context(patch.object(Finisher, "is_eos", lambda self, tokens: torch.zeros_like(tokens).bool()))
        stopping = Stopping(max_new_tokens=20, eos_ids=eos)
        tokens = engine.generate([[2, 3, 2]] * rows, stopping=stopping, seeds=list(range(rows))).tokens
    return sum(any(token in eos for token in row[:-1]) for row in tokens) / rows


def _taken_at_zero(faulty: bool) -> float:
    """All uniforms are 0, and the draw takes the first index whose cumulative mass reaches u, not exceeds it."""

    def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
        cumulative = probs.double().cumsum(-1)
        threshold = (uniforms.double().unsqueeze(-1) * cumulative[..., -1:]).contiguous()
        return torch.searchsorted(cumulative, threshold, right=False).squeeze(-1)

    target, sampling = tiny_target(), Sampling(top_k=3)
    _, engine = _decoders(target, sampling)
    with ExitStack() as faults:
        honest = Uniforms.next_round
        faults.enter_context(patch.object(Uniforms, "next_round", lambda self: torch.zeros_like(honest(self))))
        if faulty:
            faults.enter_context(patch.object(loop, "draw", draw))
        new = engine.generate(RAGGED, stopping=Stopping(max_new_tokens=10), seeds=list(range(len(RAGGED)))).tokens
    without_mass = 0
    for prompt, tokens in zip(RAGGED, new, strict=True):
        with torch.no_grad():
            logits = target.model.model(input_ids=torch.tensor([prompt + tokens]), use_cache=False).logits[0]
        probs = sampling.probs(logits[len(prompt) - 1 : -1])
        without_mass += int((probs.gather(1, torch.tensor(tokens).unsqueeze(1)) == 0).sum())
    return without_mass / sum(map(len, new))


def _tokens_from_nan(faulty: bool) -> float:
    """Nobody asks whether the laws are finite."""
    honest = Finisher.commit

    def commit(self: Finisher, tokens: Tensor, counts: Tensor, healthy: Tensor) -> Tensor:
        return honest(self, tokens, counts, torch.ones_like(healthy))

    target = tiny_target()
    _, engine = _decoders(target, Sampling())
    with ExitStack() as faults:
        faults.enter_context(_not_a_number(target))
        if faulty:
            faults.enter_context(patch.object(Finisher, "commit", commit))
        try:
            generation = engine.generate(RAGGED, stopping=Stopping(max_new_tokens=5), seeds=list(range(len(RAGGED))))
        except FloatingPointError:
            return 0.0
    return float(sum(map(len, generation.tokens)))


@contextmanager
def _not_a_number(target: Target) -> Iterator[None]:
    weight = target.model.model.get_output_embeddings().weight
    before = weight.data.clone()
    weight.data[7] = torch.nan
    try:
        yield
    finally:
        weight.data.copy_(before)
