"""What a drafter is put into while it is checked: a loop whose outcomes are dictated, and a witness of every call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from framework.conformance.draft_rules import node_depths
from framework.conformance.report import require
from framework.draft import Draft, Law, Outcome, Shape, TargetRows
from framework.drafter import Drafter
from framework.sampling import Sampling
from framework.sequences import Prompt, Sequences
from framework.verifiers.verifier import Guarantee

Pattern = Callable[[int, Tensor], Tensor]
"""How many nodes deep acceptance goes: from the round's number and the deepest offered node of each row, [B] int64."""

PATTERNS: dict[str, Pattern] = {
    "none": lambda number, deepest: torch.zeros_like(deepest),
    "one": lambda number, deepest: deepest.clamp(max=1),
    "all": lambda number, deepest: deepest,
    "all, then none, in turn": lambda number, deepest: deepest if number % 2 else torch.zeros_like(deepest),
    "another number in every row": lambda number, deepest: torch.minimum(
        deepest, (torch.arange(len(deepest), device=deepest.device) + number) % (deepest + 1).clamp(min=2)
    ),
}


class Dictated:
    """A verifier that ends acceptance where a pattern says, whatever the tokens are; then draws from p.

    The first token of every row, which is pending when drafting begins, may be dictated as well.
    """

    guarantee = Guarantee.LOSSY
    token_rule = False

    def __init__(self, pattern: Pattern = PATTERNS["none"], *, first: list[int] | None = None):
        self._pattern = pattern
        self._first = first
        self._round = 0
        self.logits: list[Tensor] = []
        """[B, N + 1, V] of every round, prefill first."""

    def check(self, law: Law, shape: Shape) -> None:
        """Take any draft."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        depth = torch.where(draft.valid, node_depths(draft), 0)
        deepest = depth.amax(1) if draft.num_nodes else draft.offered_depth
        wanted = self._pattern(self._round, deepest)
        self.logits.append(target.logits)
        self._round += 1
        rows = torch.cat([torch.zeros_like(wanted).unsqueeze(1), depth], 1)  # row 0 is pending, at depth 0
        stop = (rows == wanted.unsqueeze(1)).int().argmax(1)
        return one_hot(stop, draft.num_nodes + 1).float()

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        if self._first is not None and self._round == 1:
            return one_hot(torch.tensor(self._first, device=stop.device), target.logits.shape[2]).float()
        return target.probs(stop)


@dataclass
class Proposal:
    """One call of propose: what it was given, and what came back."""

    committed: list[Prompt]
    gamma: int
    uniforms: Tensor
    draft: Draft


@dataclass
class Witness:
    """A drafter in a transparent wrapper: keeps what it proposed, sees to it that it only reads, and lets it not learn.

    Whatever else is asked of it or set on it goes to the drafter itself.
    """

    drafter: Drafter
    proposals: list[Proposal] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.drafter, name)
        return _learn_nothing if name == "learn" else attribute  # drafts are compared, which depend on what was learnt

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dataclass_fields__:
            object.__setattr__(self, name, value)
        else:
            setattr(self.drafter, name, value)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        with only_reading(sequences, "begin"):
            self.drafter.begin(sequences, prefill, sampling)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        given = uniforms.clone()
        with only_reading(sequences, "propose"):
            draft = self.drafter.propose(sequences, gamma, uniforms)
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
        Breach: the body changed the committed tokens, or took random numbers of its own.
    """
    before, random = (sequences.committed, sequences.active.tolist()), torch.get_rng_state()
    yield
    require(
        (sequences.committed, sequences.active.tolist()) == before,
        f"{call} changed the sequences, which belong to the loop; clone what is to be changed",
    )
    require(
        torch.equal(random, torch.get_rng_state()),
        f"{call} took numbers from torch's global generator; draw with the uniforms that propose is given "
        "(framework.sampling.draw), and ask for more of them in num_uniforms",
    )
