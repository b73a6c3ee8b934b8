"""The GammaPolicy protocol: how deep the next draft goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from framework.draft import DraftedNode, Readout
from framework.whole_numbers import check_whole

LARGEST = 1000  # counts are kept for every pair of offered and accepted


class GammaPolicy(Protocol):
    """Chooses gamma between rounds from what earlier rounds showed, and may end a draft while it grows.

    Neither changes the output's law: a round is exact for every gamma, and a draft that ends after a node has still
    offered it.
    """

    max_gamma: int
    """Largest gamma it will ever ask for; buffers are sized by it."""

    @property
    def keep_drafting(self) -> Callable[[DraftedNode], Tensor] | None:
        """Whether each row's draft goes on after a node; None where it always does, so that nothing is asked.

        Asked inside a round, after every node but the last, by drafters that draft node by node
        (`framework.drafter.StepwiseDrafter`); others are not stopped. It gets what is known of the node in every row,
        and returns [B] bool.
        """
        ...

    def begin(self) -> None:
        """Called before a generation's first round. Forget earlier generations: equal calls give equal tokens."""
        ...

    def next_gamma(self) -> int:
        """Largest depth of the next draft; 0 makes the round a plain target step."""
        ...

    def observe(self, readout: Readout) -> None:
        """Called after every round's commit, proposed or not."""
        ...


@dataclass(frozen=True)
class Costs:
    """What the parts of a round take, in target passes over one row.

    Attributes:
        c: a draft step.
        target_times: target passes over 1, 2, ..., max_gamma + 1 rows.
    """

    c: float
    target_times: tuple[float, ...]

    def of_round(self, gamma: int) -> float:
        """What drafting gamma tokens and verifying them takes."""
        return self.c * gamma + self.target_times[gamma]


class CostAware(GammaPolicy, Protocol):
    """Optional: a policy that wants to know what drafting and verifying cost. No policy holds a clock."""

    def use_costs(self, costs: Costs) -> None:
        """Called by an experiment that timed the parts of a round, before it decodes anything."""
        ...


def check_gamma(knob: str, value: object, *, least: int) -> None:
    """
    Raises:
        ValueError: the value of gamma.KNOB is not a whole number from `least` to 1000.
    """
    check_whole(f"gamma.{knob}", value, least=least, most=LARGEST)


def check_number(knob: str, value: object, within: Callable[[float], bool], allowed: str) -> None:
    """
    Raises:
        ValueError: the value of gamma.KNOB is not a number, or not within its range.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not within(value):
        raise ValueError(f"gamma.{knob} is {value!r}; allowed: {allowed}")
