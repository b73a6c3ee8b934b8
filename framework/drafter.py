"""The Drafter protocol: what a class must offer to be plugged into the loop."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeGuard

from torch import Tensor

from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.sampling import Sampling
from framework.sequences import Sequences


class Drafter(Protocol):
    """Proposes tokens cheaply. Built by a factory that gets `target: Target` and the knobs of its yaml.

    A generation calls begin, then (propose, observe) once per round, and begin again for the next batch. The
    drafter owns whatever state it keeps between rounds, its rollback included; it reads `sequences` and never
    writes them.
    """

    law: Law
    """How its tokens are drawn. At temperature 0 a drawn token is a chosen one, and drafts may say ONE_HOT."""

    shape: Shape

    def num_uniforms(self, gamma: int) -> int:
        """Random numbers per row that `propose` may use for a draft of depth gamma."""
        ...

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        """Called after prefill, when the first token is pending. Forget earlier sequences, not what was learnt."""
        ...

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft at most gamma >= 1 tokens deep after pending. Called once per round, before the target's pass.

        Args:
            sequences: committed tokens; rows that are not active may be drafted for, to no effect.
            gamma: largest depth.
            uniforms: [B, num_uniforms(gamma)] float64 in [0, 1), fresh this round. The same sequences and uniforms
                give the same draft, and a smaller gamma with the first of them its beginning: near the end of the
                longest row drafts are shorter, and no row may tell from that who else is in its batch.
        """
        ...

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        """Called after every round's commit, proposed or not. `outcome` is lent until this returns."""
        ...


class TreeDrafter(Drafter, Protocol):
    """What a drafter offers as well whose shape is not CHAIN, or whose drafts end at a depth of their own."""

    def num_nodes(self, gamma: int) -> int:
        """Most nodes that a draft of depth gamma may hold; buffers have room for so many."""
        ...


def most_nodes(drafter: Drafter, gamma: int) -> int:
    """Most nodes that a draft of depth gamma may hold: gamma itself, where a drafter of chains says nothing else."""
    return drafter.num_nodes(gamma) if hasattr(drafter, "num_nodes") else gamma


@contextmanager
def keys_as(place: str) -> Iterator[None]:
    """While a drafter is built whose yaml node is not `drafter` but `place`: let its errors name its keys as they are.

    Raises:
        ValueError, OSError: with drafter.KEY written as place.KEY.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(re.sub(r"(?<![\w./\\'\"-])drafter\.", f"{place}.", str(error))) from error


class StepwiseDrafter(Drafter, Protocol):
    """Optional: a drafter that drafts node by node, and lets the gamma policy end a draft in between.

    `framework.growing_chain.GrowingChain` does what is asked of it.
    """

    keep_drafting: Callable[[DraftedNode], Tensor] | None
    """The policy's `keep_drafting`, set by the engine before every `begin`; None: drafts go as deep as gamma says.

    To be asked after every node but the last. Where it says no, the node it was asked about stays offered and the
    row's later ones are not `valid`; once no active row goes on, the draft is as deep as it is.
    """


class HostDrafter(Drafter, Protocol):
    """Optional: a drafter that finds its drafts in the host's memory, so that `propose` stays outside programs.

    `propose` gets its uniforms on the host; `sequences.texts` hold what was committed, without asking the device.
    """

    on_host: bool
    """True."""


class Rewindable(Drafter, Protocol):
    """Optional: a drafter that tokens may be taken back from, so that it can draft for a model that itself drafts."""

    def rewind(self, sequences: Sequences) -> None:
        """Called in place of `begin`, where rows are as they were before some rounds but for what follows.

        All tokens before pending are the beginning of what was committed when it observed last; pending may be another.
        """
        ...


class Remembering(Drafter, Protocol):
    """Optional: a drafter whose drafts depend on earlier generations.

    Their seeds must be others than those of what it drafts now: what a seed's draws left must not be judged by them.
    """

    remembers: bool
    """Whether they do."""

    def learnt(self) -> dict[str, Any]:
        """A copy of all that it has learnt, and of what it will learn from."""
        ...

    def relearn(self, learnt: dict[str, Any]) -> None:
        """Go back to what `learnt` returned; called between generations."""
        ...


class Learner(Remembering, Protocol):
    """Optional: a drafter that learns while it drafts. Rounds are then no programs, which hold weights as they were."""

    def learn(self, sequences: Sequences) -> None:
        """Called after every round. May change how it drafts, and then drafts as if begun with these sequences."""
        ...


def remembers(drafter: Drafter) -> TypeGuard[Remembering]:
    """Whether its drafts depend on earlier generations."""
    return getattr(drafter, "remembers", False)


def learns(drafter: Drafter) -> TypeGuard[Learner]:
    """Whether it is a Learner."""
    return hasattr(drafter, "learn")


@contextmanager
def learning_undone(drafter: Drafter) -> Iterator[None]:
    """Afterwards, a drafter knows what it knew before."""
    before = drafter.learnt() if remembers(drafter) else None
    try:
        yield
    finally:
        if before is not None and remembers(drafter):
            drafter.relearn(before)


def drafts_on_host(drafter: Drafter) -> bool:
    """Whether it is a HostDrafter."""
    return getattr(drafter, "on_host", False)
