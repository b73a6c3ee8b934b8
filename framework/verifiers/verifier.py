"""The Verifier protocol: an acceptance rule as a pair of distributions."""

from enum import Enum
from typing import Protocol

from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows


class Guarantee(Enum):
    """Guarantee of a rule about the output distribution."""

    EXACT = "exact"  # the target's own distribution
    GREEDY_EXACT = "greedy-exact"  # the target's argmax sequence at temperature 0; no guarantee above it
    LOSSY = "lossy"


class Verifier(Protocol):
    """Acceptance rule: a distribution over the row where acceptance stops, and one over the next token.

    Every published rule is such a pair, so the loop draws twice per row for all of them, and a test can sum over
    every draft and every stop instead of sampling.
    """

    guarantee: Guarantee

    token_rule: bool
    """Whether a reached node is accepted with probability min(1, p / q), so that Σ min(p, q) is its acceptance rate."""

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Check that this rule can verify such drafts. Called before any model is loaded.

        Raises:
            ValueError: it cannot; the message names the yaml key.
        """
        ...

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability that acceptance ends at pending (row 0) or at node i (row i + 1)."""
        ...

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: distribution of the token emitted after row stop[b]; stop [B] int64."""
        ...
