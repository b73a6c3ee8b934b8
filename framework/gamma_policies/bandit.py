"""A multi-armed bandit whose arms are draft lengths (UCBSpec of BanditSpec, 2025)."""

from math import inf, log, sqrt

from framework.core.draft import Readout
from framework.core.option_error import OptionError
from framework.gamma_policies.gamma_policy import Costs, check_gamma, check_number


class Bandit:
    """UCB1 over draft lengths: play each gamma once, then the one with the highest upper bound on its speed.

    The time of an arm is known: gamma draft steps and one target pass over gamma + 1 tokens. Its tokens per round,
    between 1 and gamma + 1, are estimated. After n of t rounds, the upper confidence bound on its speed is

        (mean tokens + exploration * gamma * sqrt(2 ln t / n)) / time

    The reward is speed rather than accepted tokens, which would always favour the longest draft. Statistics are reset
    for every generation, as published, since they depend on the text. A batch plays one arm, rewarded by the mean over
    its rows; rows whose draft is cut by their token budget are left out. Reading an outcome synchronises with the
    device once per round.
    """

    should_continue = None

    def __init__(self, *, gammas: list[int], c: float | None, exploration: float):
        """
        Args:
            gammas: arms, each >= 0, played first in this order.
            c: time of a draft step over that of a target step, with equal times for all target passes; None: costs
                measured by an experiment, with the times of longer target passes.
            exploration: weight of the bound's width, >= 0; 1: UCB1; 0: the mean alone.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        if not isinstance(gammas, list) or not gammas or len(set(gammas)) < len(gammas):
            raise OptionError("gammas", gammas, "a list of different gammas, such as [1, 2, 4, 8]")
        for gamma in gammas:
            check_gamma("gammas", gamma, least=0)
        if c is not None:
            check_number("c", c, lambda value: 0 <= value < inf, "a number >= 0, or null")
        check_number("exploration", exploration, lambda value: 0 <= value < inf, "a number >= 0")
        self.gammas = gammas
        self.max_gamma = max(gammas)
        self.exploration = exploration
        self._awaits_costs = c is None
        self._costs = None if c is None else Costs(c=c, target_times=(1.0,) * (self.max_gamma + 1))
        self.begin()

    def use_costs(self, costs: Costs) -> None:
        """Use measured costs, unless c is given."""
        if self._awaits_costs:
            self._costs = costs

    def begin(self) -> None:
        self._played = dict.fromkeys(self.gammas, 0)
        self._tokens = dict.fromkeys(self.gammas, 0.0)
        self._arm = self.gammas[0]

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: c is None and no costs were measured.
        """
        if self._costs is None:
            raise OptionError("gamma.c", None, "a number >= 0", "and no costs were measured")
        self._arm = max(self.gammas, key=self._optimistic_speed)  # the first one on ties
        return self._arm

    def _optimistic_speed(self, gamma: int) -> float:
        """Upper confidence bound on the arm's speed, in tokens per target pass over one token."""
        assert self._costs is not None
        played = self._played[gamma]
        if not played:
            return inf
        width = self.exploration * gamma * sqrt(2 * log(sum(self._played.values())) / played)
        return (self._tokens[gamma] / played + width) / self._costs.of_round(gamma)

    def observe(self, readout: Readout) -> None:
        # A draft cut by a row's budget is no sample of its arm.
        rows = zip(readout.active, readout.accepted, readout.max_depth, strict=True)
        accepted = [kept for active, kept, max_depth in rows if active and max_depth >= self._arm]
        if accepted:
            self._played[self._arm] += 1
            self._tokens[self._arm] += 1 + sum(accepted) / len(accepted)
