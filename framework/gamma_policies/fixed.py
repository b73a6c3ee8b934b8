"""The same gamma in every round (Leviathan et al., 2023)."""

from framework.core.draft import Readout
from framework.gamma_policies.gamma_policy import check_gamma


class Fixed:
    """Always drafts gamma tokens; gamma = 0 is plain decoding through the speculative loop."""

    should_continue = None

    def __init__(self, *, gamma: int):
        """
        Raises:
            ValueError: gamma is not a whole number from 0 to 1000.
        """
        check_gamma("gamma", gamma, least=0)
        self.max_gamma = gamma

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
