"""Test doubles of the checks: a verifier with dictated outcomes, a recording drafter, guards around calls."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from framework.conformance.draft_rules import node_depths
from framework.conformance.report import require
from framework.core.draft import Draft, Outcome, SamplingScheme, Shape, TargetRows
from framework.core.drafter import Drafter, ShouldContinue, proposal
from framework.core.sampling import Sampling
from framework.core.sequences import Prompt, Sequences
from framework.verifiers.verifier import Guarantee

Pattern = Callable[[int, Tensor], Tensor]
"""Accepted depth, [B] int64, as a function of the round's number and of each row's offered depth, [B] int64."""

PATTERNS: dict[str, Pattern] = {
    "none": lambda number, deepest: torch.zeros_like(deepest),
    "one": lambda number, deepest: deepest.clamp(max=1),
    "all": lambda number, deepest: deepest,
    "all and none, alternating": lambda number, deepest: deepest if number % 2 else torch.zeros_like(deepest),
    "a different number in every row": lambda number, deepest: torch.minimum(
        deepest, (torch.arange(len(deepest), device=deepest.device) + number) % (deepest + 1).clamp(min=2)
    ),
}

UNIFORMS = (
    "draw with the uniforms passed to propose (framework.core.sampling.draw), and request as many as needed in "
    "num_uniforms"
)


class Dictated:
    """A verifier that stops at the depth given by a pattern, whatever the tokens, and then draws from p.

    The first token of every row, which is pending when drafting begins, can be dictated as well.
    """

    guarantee = Guarantee.LOSSY
    token_rule = False

    def __init__(self, pattern: Pattern = PATTERNS["none"], *, first: list[int] | None = None):
        self._pattern = pattern
        self._first = first
        self._round = 0
        self.logits: list[Tensor] = []
        """[B, N + 1, V] logits of every round, prefill first."""

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Every draft is allowed."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        depth = torch.where(draft.valid, node_depths(draft), 0)
        deepest = depth.amax(1) if draft.num_nodes else draft.offered_depth
        wanted = self._pattern(self._round, deepest)
        self.logits.append(target.logits)
        self._round += 1
        rows = torch.cat([torch.zeros_like(wanted).unsqueeze(1), depth], 1)  # row 0 is pending, at depth 0
        stop = (rows == wanted.unsqueeze(1)).int().argmax(1)
        return one_hot(stop, draft.num_nodes + 1).float()

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        if self._first is not None and self._round == 1:
            return one_hot(torch.tensor(self._first, device=stop.device), target.logits.shape[2]).float()
        return target.probs(stop)


@dataclass
class Proposal:
    """One call of `propose`: its inputs and the draft it returned."""

    committed: list[Prompt]
    gamma: int
    uniforms: Tensor
    draft: Draft


@dataclass
class Witness:
    """A transparent wrapper of a drafter that records proposals, checks that calls only read, and disables learning.

    All other attributes are read from, and set on, the drafter itself.
    """

    drafter: Drafter
    proposals: list[Proposal] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.drafter, name)
        return _learn_nothing if name == "learn" else attribute  # learning would change the drafts that are compared

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dataclass_fields__:
            object.__setattr__(self, name, value)
        else:
            setattr(self.drafter, name, value)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        with only_reading(sequences, "begin"):
            self.drafter.begin(sequences, prefill, sampling)

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        given = uniforms.clone()
        with only_reading(sequences, "propose"):
            draft = proposal(self.drafter, sequences, gamma, uniforms, should_continue)
        require(torch.equal(given, uniforms), "propose changed the uniforms it was given; copy them first")
        self.proposals.append(Proposal(sequences.committed, gamma, given, draft))
        return draft

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        with only_reading(sequences, "observe"):
            self.drafter.observe(sequences, outcome)


def _learn_nothing(sequences: Sequences) -> None:
    pass


@contextmanager
def only_reading(sequences: Sequences, call: str) -> Iterator[None]:
    """
    Raises:
        Breach: the body changed the sequences, or drew from torch's global generator.
    """
    before = sequences.snapshot()
    with no_global_randomness(call, UNIFORMS):
        yield
    require(
        sequences.snapshot() == before,
        f"{call} changed the sequences, which belong to the loop; clone tensors before changing them",
    )


@contextmanager
def no_global_randomness(call: str, advice: str) -> Iterator[None]:
    """
    Args:
        call: name of the call in the body, for the message.
        advice: the source of randomness to use instead.

    Raises:
        Breach: the body drew from a global generator of torch or Python.
    """
    before, python = torch.get_rng_state(), random.getstate()
    yield
    for name, same in (
        ("torch", torch.equal(before, torch.get_rng_state())),
        ("Python", python == random.getstate()),
    ):
        require(same, f"{call} drew from {name}'s global generator; {advice}")
