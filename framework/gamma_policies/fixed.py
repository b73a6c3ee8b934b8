"""The same gamma in every round (Leviathan et al., 2023)."""

from framework.draft import Outcome


class Fixed:
    """Always drafts gamma tokens; 0 is plain decoding through the speculative loop."""

    def __init__(self, *, gamma: int):
        """
        Raises:
            ValueError: gamma is not a whole number >= 0.
        """
        if not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 0:
            raise ValueError(f"gamma.gamma is {gamma!r}; allowed: a whole number >= 0")
        self.max_gamma = gamma

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, outcome: Outcome) -> None:
        pass
