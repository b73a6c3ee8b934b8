"""The GammaPolicy protocol: the depth of the next draft."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from framework.core.draft import DraftedNode, Readout
from framework.core.validation import check_whole

LARGEST = 1000  # records hold a count for every pair of offered and accepted depths


class GammaPolicy(Protocol):
    """Chooses gamma for every round from earlier rounds, and may end a draft early.

    It decides from outcomes and measured costs alone: it reads no clock, and draws from no global generator.
    Neither decision changes the output distribution: a round is exact for every gamma, and a draft that ends after a
    node still offers it.
    """

    max_gamma: int
    """Largest gamma of any round; determines the size of buffers."""

    @property
    def should_continue(self) -> Callable[[DraftedNode], Tensor] | None:
        """Function that decides whether each row's draft continues after a node; None: drafts always continue.

        Called during drafting, after every node but the last, by drafters that draft node by node
        (`framework.core.drafter.StepwiseDrafter`, whose `propose` takes it as `should_continue`); others are not
        stopped. It takes the node that every row drafted last, and returns [B] bool, which for every row depends on
        its own nodes and outcomes only.
        """
        ...

    def begin(self) -> None:
        """Forget earlier generations: equal calls give equal tokens. Called before a generation's first round."""
        ...

    def next_gamma(self) -> int:
        """Largest depth of the next draft; 0: the round is a plain target step."""
        ...

    def observe(self, readout: Readout) -> None:
        """Called after every round's commit, also if nothing was proposed."""
        ...


@dataclass(frozen=True)
class Costs:
    """Times of the parts of a round, in target passes over one token.

    Attributes:
        c: time of a draft step.
        target_times: times of target passes over 1, 2, ..., max_gamma + 1 tokens.
    """

    c: float
    target_times: tuple[float, ...]

    def of_round(self, gamma: int) -> float:
        """Time to draft gamma tokens and verify them."""
        return self.c * gamma + self.target_times[gamma]


class CostAware(GammaPolicy, Protocol):
    """Optional: a policy that uses measured costs of drafting and verifying. No policy holds a clock."""

    def use_costs(self, costs: Costs) -> None:
        """Called by experiments that time the parts of a round, before they decode."""
        ...


def is_cost_aware(policy: GammaPolicy) -> TypeGuard[CostAware]:
    """Whether the policy is a CostAware one."""
    return hasattr(policy, "use_costs")


class WithRows(GammaPolicy, Protocol):
    """Optional: a policy that keeps a state per row."""

    def begin_rows(self, rows: list[int]) -> None:
        """Begin these rows with other prompts, and thus without outcomes of their own."""
        ...


def has_rows(policy: GammaPolicy) -> TypeGuard[WithRows]:
    """Whether the policy is one WithRows."""
    return hasattr(policy, "begin_rows")


class WithShadowDrafts(GammaPolicy, Protocol):
    """Optional: a policy that tests a drafter by shadow drafts, which take no target pass.

    A shadow draft is a token per row that a `Lookup` drafter finds beside a round without a draft, compared with the
    token that the target emits. The target emits it with probability p, as speculative sampling accepts it.
    """

    def allow_shadows(self) -> None:
        """Called after `begin` if the loop can make shadow drafts in this generation."""
        ...

    @property
    def is_shadow_due(self) -> bool:
        """Whether to make a shadow draft beside the round that `next_gamma` has begun."""
        ...

    def observe_shadow(self, readout: Readout) -> None:
        """Called after `observe` with the readout of the same round, with the shadow draft in place of the draft."""
        ...


def has_shadows(policy: GammaPolicy) -> TypeGuard[WithShadowDrafts]:
    """Whether the policy is one WithShadowDrafts."""
    return hasattr(policy, "observe_shadow")


class WithTensors(GammaPolicy, Protocol):
    """Optional: a policy with tensors that serve all generations."""

    def move_to(self, device: torch.device) -> None:
        """Move them to the device of the drafts' distributions; called before `begin`."""
        ...


def has_tensors(policy: GammaPolicy) -> TypeGuard[WithTensors]:
    """Whether the policy is one WithTensors."""
    return hasattr(policy, "move_to")


def check_gamma(option: str, value: object, *, least: int) -> None:
    """
    Raises:
        ValueError: the value is not a whole number from `least` to 1000.
    """
    check_whole(option, value, least=least, most=LARGEST)
