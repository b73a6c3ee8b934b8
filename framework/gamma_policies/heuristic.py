"""Gamma that grows by 2 after full acceptance and falls by 1 otherwise (Hugging Face's "heuristic")."""

from framework.core.draft import Readout
from framework.core.option_error import OptionError
from framework.gamma_policies.gamma_policy import check_gamma


class Heuristic:
    """Adapts gamma to the last round, between 1 and max_gamma.

    A batch has one gamma, which grows if all rows with an offered draft accept it in full. A round that offers nothing
    leaves gamma unchanged. Every generation starts at `initial`, so that measurements do not depend on the order of the
    prompts. Reading an outcome synchronises with the device once per round.
    """

    should_continue = None

    def __init__(self, *, initial: int, max_gamma: int):
        """
        Args:
            initial: gamma of a generation's first round, at most max_gamma.
            max_gamma: largest gamma.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_gamma("initial", initial, least=1)
        if initial > max_gamma:
            raise OptionError("initial", initial, f"at most max_gamma, {max_gamma}")
        self.max_gamma = max_gamma
        self.initial = initial
        self.begin()

    def begin(self) -> None:
        self._gamma = self.initial

    def next_gamma(self) -> int:
        return self._gamma

    def observe(self, readout: Readout) -> None:
        rows = zip(readout.active, readout.offered, readout.rejected, strict=True)
        rejected = [rejected for active, offered, rejected in rows if active and offered]
        if rejected:
            self._gamma = max(1, self._gamma - 1) if any(rejected) else min(self._gamma + 2, self.max_gamma)
