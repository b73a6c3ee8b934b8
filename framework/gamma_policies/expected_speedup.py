"""Gamma of the largest expected speedup, from a running alpha and the costs (Leviathan et al., 2023, Theorem 3.8)."""

from math import inf

from framework.core.draft import Readout
from framework.core.option_error import OptionError
from framework.core.validation import check_number, check_whole
from framework.gamma_policies.gamma_policy import Costs, check_gamma
from framework.metrics import theory


class ExpectedSpeedup:
    """Maximises expected tokens over expected time: Eq. 1 over gamma * c + v(gamma + 1).

    v(n) is the time of a target pass over n tokens. alpha is estimated as (a + accepted) / (a + b + tested), with a
    Beta(a, b) prior. A round's counts decay by the factor `forgetting` with every later round that tests a node; the
    prior does not decay. Where drafting does not pay, gamma is 0 and no node is tested; one node is then drafted every
    `probe_every` rounds.

    Every generation starts with the prior, since acceptance depends on the text, and so that measurements do not depend
    on the order of the prompts. Reading an outcome synchronises with the device once per round.
    """

    should_continue = None

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
            c: time of a draft step over that of a target step, with equal times for all target passes (Theorem 3.8);
                None: costs measured by an experiment, with the times of longer target passes.
            prior_accepted: a > 0, pseudo-count of accepted nodes.
            prior_rejected: b > 0, pseudo-count of rejected nodes.
            forgetting: in (0, 1], decay of a round's weight with every later one; 1: no decay.
            probe_every: rounds from one test to the next while the best gamma is 0; None: no further tests.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        if c is not None:
            check_number("c", c, lambda value: 0 <= value < inf, "a number >= 0, or null")
        check_number("prior_accepted", prior_accepted, lambda value: 0 < value < inf, "a number > 0")
        check_number("prior_rejected", prior_rejected, lambda value: 0 < value < inf, "a number > 0")
        check_number("forgetting", forgetting, lambda value: 0 < value <= 1, "a number in (0, 1]")
        check_whole("probe_every", probe_every, least=1, or_null=True)
        self.max_gamma = max_gamma
        self.prior = (prior_accepted, prior_rejected)
        self.forgetting = forgetting
        self.probe_every = inf if probe_every is None else probe_every
        self._awaits_costs = c is None
        self._costs = None if c is None else Costs(c=c, target_times=(1.0,) * (max_gamma + 1))
        self.begin()

    @property
    def alpha(self) -> float:
        """Running estimate of the acceptance rate."""
        a, b = self.prior
        return (a + self._accepted) / (a + b + self._tested)

    def use_costs(self, costs: Costs) -> None:
        """Use measured costs, unless c is given."""
        if self._awaits_costs:
            self._costs = costs

    def begin(self) -> None:
        self._accepted = self._tested = 0.0
        self._rounds_untested = 0

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: c is None and no costs were measured.
        """
        if self._costs is None:
            raise OptionError("gamma.c", None, "a number >= 0", "and no costs were measured")
        gamma = theory.optimal_gamma(self.alpha, self._costs.c, self.max_gamma, self._costs.target_times)
        probing = gamma == 0 and self._rounds_untested + 1 >= self.probe_every
        return 1 if probing else gamma

    def observe(self, readout: Readout) -> None:
        rows = [
            (accepted, rejected)
            for active, accepted, rejected in zip(readout.active, readout.accepted, readout.rejected, strict=True)
            if active
        ]
        accepted = sum(accepted for accepted, _ in rows)
        tested = accepted + sum(rejected for _, rejected in rows)
        if tested:
            self._accepted = self.forgetting * self._accepted + accepted
            self._tested = self.forgetting * self._tested + tested
            self._rounds_untested = 0
        else:
            self._rounds_untested += 1
