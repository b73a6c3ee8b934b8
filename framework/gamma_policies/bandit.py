"""A multi-armed bandit whose arms are draft lengths (UCBSpec of BanditSpec, 2025)."""

from collections.abc import Sequence
from math import inf

from framework.core.bandits import BanditAlgorithm, UpperConfidence
from framework.core.draft import Readout
from framework.core.option_error import OptionError
from framework.core.validation import check_number
from framework.gamma_policies.gamma_policy import Costs, check_gamma


class GammaBandit:
    """Plays gammas by a bandit algorithm, rewarded by speed.

    The time of an arm is known: gamma draft steps and one target pass over gamma + 1 tokens. Its tokens per round,
    between 1 and gamma + 1, are observed. The reward is speed rather than accepted tokens, which would always favour
    the longest draft, as a share of the largest possible speed of any arm. Statistics are reset for every generation,
    as published, since they depend on the text. A batch plays one arm, rewarded by the mean over its rows; rows whose
    draft is cut by their token budget are left out. Reading an outcome synchronises with the device once per round.
    """

    should_continue = None

    def __init__(self, *, gammas: list[int], c: float | None):
        if not isinstance(gammas, list) or not gammas or len(set(gammas)) < len(gammas):
            raise OptionError("gammas", gammas, "a list of different gammas, such as [1, 2, 4, 8]")
        for gamma in gammas:
            check_gamma("gammas", gamma, least=0)
        if c is not None:
            check_number("c", c, lambda value: 0 <= value < inf, "a number >= 0, or null")
        self.gammas = gammas
        self.max_gamma = max(gammas)
        self._awaits_costs = c is None
        self._costs = None if c is None else Costs(c=c, target_times=(1.0,) * (self.max_gamma + 1))
        self._new_algorithm([1.0] * len(gammas))  # checks its options
        self.begin()

    def _new_algorithm(self, ranges: Sequence[float]) -> BanditAlgorithm:
        """The algorithm without any reward."""
        raise NotImplementedError

    def use_costs(self, costs: Costs) -> None:
        """Use measured costs, unless c is given."""
        if self._awaits_costs:
            self._costs = costs

    def begin(self) -> None:
        self.algorithm: BanditAlgorithm | None = None  # begins with the first round, when the costs are known
        self._arm = 0

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: c is None and no costs were measured.
        """
        if self._costs is None:
            raise OptionError("gamma.c", None, "a number >= 0", "and no costs were measured")
        if self.algorithm is None:
            self._times = [self._costs.of_round(gamma) for gamma in self.gammas]
            self._fastest = max((gamma + 1) / time for gamma, time in zip(self.gammas, self._times, strict=True))
            ranges = [gamma / time / self._fastest for gamma, time in zip(self.gammas, self._times, strict=True)]
            self.algorithm = self._new_algorithm(ranges)
        self._arm = self.algorithm.choose()
        return self.gammas[self._arm]

    def observe(self, readout: Readout) -> None:
        # A draft cut by a row's budget is no sample of its arm.
        rows = zip(readout.active, readout.accepted, readout.max_depth, strict=True)
        accepted = [kept for active, kept, max_depth in rows if active and max_depth >= self.gammas[self._arm]]
        if accepted:
            assert self.algorithm is not None, "next_gamma comes first"
            tokens = 1 + sum(accepted) / len(accepted)
            self.algorithm.observe(self._arm, tokens / self._times[self._arm] / self._fastest)


class Bandit(GammaBandit):
    """UCB1 over draft lengths: play each gamma once, then the one with the highest upper bound on its speed.

    After n of t rounds, the upper confidence bound on the speed of an arm is

        (mean tokens + exploration * gamma * sqrt(2 ln t / n)) / time
    """

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
        self._exploration = exploration
        super().__init__(gammas=gammas, c=c)

    def _new_algorithm(self, ranges: Sequence[float]) -> UpperConfidence:
        return UpperConfidence(ranges, exploration=self._exploration)
