"""The gamma that Theorem 3.8 of Leviathan et al. (2023) expects to be fastest, from a running alpha and the costs."""

from math import inf

from framework import theory
from framework.draft import Readout
from framework.gamma_policies.gamma_policy import Costs, check_gamma, check_number
from framework.whole_numbers import check_whole


class BestExpectedSpeed:
    """Maximises expected tokens over expected time: Eq. 1 over gamma * c + v(gamma + 1).

    alpha is estimated as (a + accepted) / (a + b + tested), where a round's counts fade by `forgetting` with every
    later round that tested anything, and a and b are those of a Beta prior, which does not fade. Where drafting does
    not pay, nothing is tested and nothing learnt: one node is drafted every `probe_every` rounds.

    Every generation begins with the prior, because acceptance belongs to a text, and so that what is measured does
    not depend on the order of the prompts. Looking at an outcome waits for the device once a round.
    """

    keep_drafting = None

    def __init__(
        self,
        *,
        max_gamma: int,
        c: float | None,
        prior_accepted: float,
        prior_rejected: float,
        forgetting: float,
        probe_every: int | None,
    ):
        """
        Args:
            max_gamma: largest gamma considered.
            c: time of a draft step over that of a target step, every target pass counting as one step (Theorem 3.8);
                None waits for what an experiment measured, the target's wider passes included.
            prior_accepted: a, nodes thought of as accepted before any was tested.
            prior_rejected: b, nodes thought of as rejected.
            forgetting: in (0, 1]: what a round keeps of its weight with every later one; 1 forgets nothing.
            probe_every: rounds from one test to the next where the best gamma is 0; None never tests again.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        if c is not None:
            check_number("c", c, lambda value: 0 <= value < inf, "a number >= 0, or null")
        check_number("prior_accepted", prior_accepted, lambda value: 0 < value < inf, "a number > 0")
        check_number("prior_rejected", prior_rejected, lambda value: 0 < value < inf, "a number > 0")
        check_number("forgetting", forgetting, lambda value: 0 < value <= 1, "a number in (0, 1]")
        check_whole("gamma.probe_every", probe_every, least=1, or_null=True)
        self.max_gamma = max_gamma
        self.prior = (prior_accepted, prior_rejected)
        self.forgetting = forgetting
        self.probe_every = inf if probe_every is None else probe_every
        self._awaits_costs = c is None
        self._costs = None if c is None else Costs(c=c, target_times=(1.0,) * (max_gamma + 1))
        self.begin()

    @property
    def alpha(self) -> float:
        """The running estimate of the acceptance rate."""
        a, b = self.prior
        return (a + self._accepted) / (a + b + self._tested)

    def use_costs(self, costs: Costs) -> None:
        """Take measured costs, unless c was given."""
        if self._awaits_costs:
            self._costs = costs

    def begin(self) -> None:
        self._accepted = self._tested = 0.0
        self._rounds_untested = 0

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: c is None and nothing was measured.
        """
        if self._costs is None:
            raise ValueError("gamma.c is null and no costs were measured; give gamma.c a number >= 0")
        gamma = theory.optimal_gamma(self.alpha, self._costs.c, self.max_gamma, self._costs.target_times)
        probing = gamma == 0 and self._rounds_untested + 1 >= self.probe_every
        return 1 if probing else gamma

    def observe(self, readout: Readout) -> None:
        rows = [
            (accepted, lost)
            for active, accepted, lost in zip(readout.active, readout.accepted, readout.lost, strict=True)
            if active
        ]
        accepted = sum(accepted for accepted, _ in rows)
        tested = accepted + sum(lost for _, lost in rows)
        if tested:
            self._accepted = self.forgetting * self._accepted + accepted
            self._tested = self.forgetting * self._tested + tested
            self._rounds_untested = 0
        else:
            self._rounds_untested += 1
