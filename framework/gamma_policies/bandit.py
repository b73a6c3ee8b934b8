"""Each gamma is an arm: play the one with the best upper bound on its speed (UCBSpec of BanditSpec, 2025)."""

from math import inf, log, sqrt

from framework.draft import Readout
from framework.gamma_policies.gamma_policy import Costs, check_gamma, check_number


class Bandit:
    """Plays every gamma once, and from then on the one that maximises an optimistic estimate of tokens per time.

    An arm's time is known beforehand: gamma draft steps and a pass over gamma + 1 rows. Its tokens per round are what
    has to be learnt, between 1 and gamma + 1, so that after n of t rounds its speed may be

        (mean tokens + exploration * gamma * sqrt(2 ln t / n)) / time

    The reward is a speed and not the number of accepted tokens, which the longest draft always wins. Every generation
    begins anew, as published: an arm's worth belongs to a text. A batch plays one arm, for the mean reward of its rows;
    near the end of their budgets, where drafts are cut, rows reward none.
    Looking at an outcome waits for the device once a round.
    """

    keep_drafting = None

    def __init__(self, *, gammas: list[int], c: float | None, exploration: float):
        """
        Args:
            gammas: the arms, each at least 0, played first in this order.
            c: time of a draft step over that of a target step, every target pass counting as one step; None waits for
                what an experiment measured, the target's wider passes included.
            exploration: >= 0: what the bound's width weighs; 1 is UCB1's, 0 believes every mean at once.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        if not isinstance(gammas, list) or not gammas or len(set(gammas)) < len(gammas):
            raise ValueError(f"gamma.gammas is {gammas!r}; allowed: a list of different gammas, such as [1, 2, 4, 8]")
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
        """Take measured costs, unless c was given."""
        if self._awaits_costs:
            self._costs = costs

    def begin(self) -> None:
        self._played = dict.fromkeys(self.gammas, 0)
        self._tokens = dict.fromkeys(self.gammas, 0.0)
        self._arm = self.gammas[0]

    def next_gamma(self) -> int:
        """
        Raises:
            ValueError: c is None and nothing was measured.
        """
        if self._costs is None:
            raise ValueError("gamma.c is null and no costs were measured; give gamma.c a number >= 0")
        self._arm = max(self.gammas, key=self._optimistic_speed)  # of equals the first
        return self._arm

    def _optimistic_speed(self, gamma: int) -> float:
        """Tokens per one-row target time that this arm may have."""
        assert self._costs is not None
        played = self._played[gamma]
        if not played:
            return inf
        width = self.exploration * gamma * sqrt(2 * log(sum(self._played.values())) / played)
        return (self._tokens[gamma] / played + width) / self._costs.of_round(gamma)

    def observe(self, readout: Readout) -> None:
        # A draft that a row's budget cuts says nothing of its arm.
        rows = zip(readout.active, readout.accepted, readout.room, strict=True)
        accepted = [kept for active, kept, room in rows if active and room >= self._arm]
        if accepted:
            self._played[self._arm] += 1
            self._tokens[self._arm] += 1 + sum(accepted) / len(accepted)
