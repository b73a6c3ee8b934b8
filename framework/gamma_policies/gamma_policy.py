"""The GammaPolicy protocol: how deep the next draft goes."""

from typing import Protocol

from framework.draft import Outcome


class GammaPolicy(Protocol):
    """Chooses gamma between rounds from what earlier rounds showed."""

    max_gamma: int
    """Largest gamma it will ever ask for; buffers are sized by it."""

    def begin(self) -> None:
        """Called before a generation's first round."""
        ...

    def next_gamma(self) -> int:
        """Largest depth of the next draft; 0 makes the round a plain target step."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Called after every round's commit, proposed or not."""
        ...
