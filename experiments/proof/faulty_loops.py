"""Injected faults of the decoding loop, detected in its output on a tiny random target."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.core.uniforms import RoundUniforms, Uniforms
from framework.decoding import device_round as loop
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.round_summary import StepSummary
from framework.decoding.stopping import Finisher, Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.cache_slots import Slots
from framework.models.cached_lm import CachedLM
from framework.models.target import Target

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]


def _decoders(
    target: Target, sampling: Sampling, drafter_name: str = "small_transformer"
) -> tuple[Autoregressive, Engine]:
    drafter = tiny_factory(drafter_name, target.vocabulary_size)(target=target)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    return Autoregressive(target=target, sampling=sampling), engine


def _unlike_plain(
    fault: Callable[[Target], AbstractContextManager], faulty: bool, drafter_name: str = "small_transformer"
) -> float:
    """Share of tokens in a ragged greedy batch that differ from plain decoding."""
    target, stopping, seeds = tiny_target(), Stopping(max_new_tokens=20), list(range(len(RAGGED)))
    plain, engine = _decoders(target, GREEDY, drafter_name)
    expected = plain.generate(RAGGED, stopping=stopping, seeds=seeds).tokens
    with fault(target) if faulty else nullcontext():
        got = engine.generate(RAGGED, stopping=stopping, seeds=seeds).tokens
    pairs = [pair for ours, theirs in zip(got, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    return sum(ours != theirs for ours, theirs in pairs) / len(pairs)


def _leaking_rows(faulty: bool) -> float:
    """Fault: every row commits as many tokens as the row with the most accepted tokens in its batch."""
    honest = Finisher.commit

    def commit(self: Finisher, tokens: Tensor, counts: Tensor) -> Tensor:
        return honest(self, tokens, counts.amax().expand_as(counts))

    return _unlike_plain(lambda target: patch.object(Finisher, "commit", commit), faulty)


def _stale_ids(faulty: bool) -> float:
    """Fault: position ids count all tokens ever read, rejected ones included."""

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


def _path_not_moved(faulty: bool) -> float:
    """Fault: keys and values of accepted nodes stay in their tree slots."""
    stay = patch.object(CachedLM, "keep_path", lambda self, tree, path, *, after: None)
    return _unlike_plain(lambda target: stay, faulty, "transformer_tree")


def _seen_siblings(faulty: bool) -> float:
    """Fault: a tree node attends to all nodes before it, as in a chain."""
    honest = Slots.of_tree

    def as_on_a_chain(self: Slots, start: Tensor, sees: Tensor, visible: int) -> Tensor:
        before = sees.int().flip(2).cummax(2).values.flip(2).bool()  # up to the last visible node, the node itself
        return honest(self, start, before, visible)

    return _unlike_plain(lambda target: patch.object(Slots, "of_tree", as_on_a_chain), faulty, "transformer_tree")


def _unseen_eos(faulty: bool) -> float:
    """Fault: the device never detects end-of-text; the host only records that it occurred."""
    target, eos = tiny_target(vocabulary=5), (0, 1)
    _, engine = _decoders(target, Sampling())
    rows = 64
    with ExitStack() as faults:
        if faulty:
            faults.enter_context(patch.object(Finisher, "is_eos", lambda self, tokens: torch.zeros_like(tokens).bool()))
        stopping = Stopping(max_new_tokens=20, eos_ids=eos)
        tokens = engine.generate([[2, 3, 2]] * rows, stopping=stopping, seeds=list(range(rows))).tokens
    return sum(any(token in eos for token in row[:-1]) for row in tokens) / rows


def _taken_at_zero(faulty: bool) -> float:
    """Fault: with all uniforms 0, a draw takes the first index whose cumulative mass is >= u instead of > u."""

    def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
        cumulative = probs.double().cumsum(-1)
        threshold = (uniforms.double().unsqueeze(-1) * cumulative[..., -1:]).contiguous()
        return torch.searchsorted(cumulative, threshold, right=False).squeeze(-1)

    target, sampling = tiny_target(), Sampling(top_k=3)
    _, engine = _decoders(target, sampling)
    with ExitStack() as faults:
        honest = Uniforms.next_round

        def zeros(uniforms: Uniforms) -> RoundUniforms:
            return RoundUniforms(torch.zeros_like(honest(uniforms).numbers))

        faults.enter_context(patch.object(Uniforms, "next_round", zeros))
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
    """Fault: the check for finite distributions always passes."""
    honest = StepSummary.pack

    def pack(summary: StepSummary[Tensor]) -> Tensor:
        return honest(replace(summary, healthy=torch.ones_like(summary.healthy)))

    target = tiny_target()
    _, engine = _decoders(target, Sampling())
    with ExitStack() as faults:
        faults.enter_context(_not_a_number(target))
        if faulty:
            faults.enter_context(patch.object(StepSummary, "pack", pack))
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


UNLIKE_PLAIN = "share of tokens unlike plain decoding's"
LOOP_FAULTS: dict[str, tuple[str, Callable[[bool], float]]] = {
    "tokens leak between rows": (UNLIKE_PLAIN, _leaking_rows),
    "stale position ids after a roll-back": (UNLIKE_PLAIN, _stale_ids),
    "the accepted path of a tree is not moved into place": (UNLIKE_PLAIN, _path_not_moved),
    "the nodes of a tree see their siblings": (UNLIKE_PLAIN, _seen_siblings),
    "end-of-text inside a block goes unseen": ("share of rows that go on after it", _unseen_eos),
    "a token with p = 0 is taken at u = 0": ("share of tokens without mass", _taken_at_zero),
    "rows of NaN become tokens": ("tokens drawn from NaN", _tokens_from_nan),
}
"""Fault: its measure in words, and the function that measures it without or with the fault; 0 for a correct loop."""
