"""The same gamma in every round (Leviathan et al., 2023)."""

from framework.draft import Outcome

LARGEST = 1000  # counts are kept for every pair of offered and accepted


class Fixed:
    """Always drafts gamma tokens; 0 is plain decoding through the speculative loop."""

    def __init__(self, *, gamma: int):
        """
        Raises:
            ValueError: gamma is not a whole number from 0 to 1000.
        """
        if not isinstance(gamma, int) or isinstance(gamma, bool) or not 0 <= gamma <= LARGEST:
            raise ValueError(f"gamma.gamma is {gamma!r}; allowed: a whole number from 0 to {LARGEST}")
        self.max_gamma = gamma

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, outcome: Outcome) -> None:
        pass
