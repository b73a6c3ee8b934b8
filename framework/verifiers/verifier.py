"""The Verifier protocol: an acceptance rule written as a pair of laws."""

from enum import Enum
from typing import Protocol

from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows


class Guarantee(Enum):
    """What a rule promises about the output."""

    EXACT = "exact"  # the target's own law
    GREEDY_EXACT = "greedy-exact"  # the target's argmax sequence at temperature 0, nothing above it
    LOSSY = "lossy"


class Verifier(Protocol):
    """Decides which drafted tokens stay: first a law over where acceptance stops, then a law over what follows.

    Every published rule is such a pair, so the loop draws twice per row for all of them, and a test can sum over
    every draft and every stop instead of sampling.
    """

    guarantee: Guarantee

    token_rule: bool
    """Whether a node that is reached is kept with probability min(1, p / q). Then Σ min(p, q) says how many are."""

    def check(self, law: Law, shape: Shape) -> None:
        """Called before any model is loaded.

        Raises:
            ValueError: this rule cannot verify such drafts; the message names the yaml key.
        """
        ...

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability that acceptance ends at pending (row 0) or at node i (row i + 1)."""
        ...

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: law of the token emitted after row stop[b]; stop [B] int64."""
        ...
