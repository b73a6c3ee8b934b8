"""Two more nodes after a draft that was accepted whole, one fewer after any other (Hugging Face's "heuristic")."""

from framework.draft import Readout
from framework.gamma_policies.gamma_policy import check_gamma


class Additive:
    """Lets gamma follow the run of acceptances, from 1 to max_gamma.

    A batch has one gamma: it grows when every row that was offered something accepted all of it. A round that offered
    nothing changes nothing. Every generation begins at `initial`, so that what is measured does not depend on the
    order of the prompts. Looking at an outcome waits for the device once a round.
    """

    keep_drafting = None

    def __init__(self, *, initial: int, max_gamma: int):
        """
        Args:
            initial: gamma of a generation's first round, at most max_gamma.
            max_gamma: where growing ends.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_gamma("initial", initial, least=1)
        if initial > max_gamma:
            raise ValueError(f"gamma.initial is {initial}; allowed: at most gamma.max_gamma, {max_gamma}")
        self.max_gamma = max_gamma
        self.initial = initial
        self.begin()

    def begin(self) -> None:
        self._gamma = self.initial

    def next_gamma(self) -> int:
        return self._gamma

    def observe(self, readout: Readout) -> None:
        rows = zip(readout.active, readout.offered, readout.lost, strict=True)
        lost = [lost for active, offered, lost in rows if active and offered]
        if lost:
            self._gamma = max(1, self._gamma - 1) if any(lost) else min(self._gamma + 2, self.max_gamma)
