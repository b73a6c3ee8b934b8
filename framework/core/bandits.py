"""Multi-armed bandits: choose among arms by the rewards of earlier choices."""

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from random import Random
from typing import Protocol

from framework.core.validation import check_number, check_whole


class BanditAlgorithm(Protocol):
    """Chooses one of several arms, numbered from 0. A factory builds it from `ranges` and the options of its yaml.

    `ranges` has the difference between the largest and the smallest reward of every arm.
    """

    def choose(self) -> int:
        """The arm to play next; it may be played without a reward."""
        ...

    def observe(self, arm: int, reward: float) -> None:
        """Note the reward, in [0, 1], of the arm chosen last."""
        ...


class UpperConfidence:
    """UCB1 (Auer et al., 2002): plays each arm once, then the one with the highest upper confidence bound.

    After n of t plays, the bound of an arm is mean reward + exploration * range * sqrt(2 ln t / n).

    Attributes:
        plays: number of rewards of every arm.
        rewards: their sums.
    """

    def __init__(self, ranges: Sequence[float], *, exploration: float):
        """
        Args:
            ranges: of the rewards of every arm.
            exploration: weight of the bound's width, >= 0; 1: UCB1; 0: the mean alone.

        Raises:
            ValueError: exploration is out of range.
        """
        check_number("exploration", exploration, lambda value: 0 <= value < inf, "a number >= 0")
        self._ranges, self._exploration = ranges, exploration
        self.plays, self.rewards = [0] * len(ranges), [0.0] * len(ranges)

    def choose(self) -> int:
        return max(range(len(self.plays)), key=self._bound)  # the first one on ties

    def _bound(self, arm: int) -> float:
        plays = self.plays[arm]
        if not plays:
            return inf
        width = self._exploration * self._ranges[arm] * sqrt(2 * log(sum(self.plays)) / plays)
        return self.rewards[arm] / plays + width

    def observe(self, arm: int, reward: float) -> None:
        self.plays[arm] += 1
        self.rewards[arm] += reward


class Exp3:
    """EXP3: draws arms with weights exponential in their estimated losses, for rewards that follow no distribution.

    The loss of a round is 1 - reward, divided by the probability of the arm that was played. At the t-th of these
    rounds, K arms have weights exp(-rate * sum of losses) with rate sqrt(ln K / (t K)), for which the number of rounds
    need not be known (Auer et al., 2002, in the form of Bubeck and Cesa-Bianchi, 2012, theorem 3.1).
    """

    def __init__(self, ranges: Sequence[float], *, seed: int):
        """
        Args:
            ranges: one per arm; their values do not matter.
            seed: seed of the draws, >= 0.

        Raises:
            ValueError: seed is no whole number >= 0.
        """
        check_whole("seed", seed, least=0, most=2**63 - 1)
        self._random = Random(seed)
        self._losses = [0.0] * len(ranges)
        self._rounds = 0

    @property
    def probs(self) -> list[float]:
        """Probability of every arm in the next choice."""
        number, least = len(self._losses), min(self._losses)
        rate = sqrt(log(number) / ((self._rounds + 1) * number))
        weights = [exp(-rate * (loss - least)) for loss in self._losses]
        return [weight / sum(weights) for weight in weights]

    def choose(self) -> int:
        return self._random.choices(range(len(self._losses)), self.probs)[0]

    def observe(self, arm: int, reward: float) -> None:
        self._losses[arm] += (1 - reward) / self.probs[arm]
        self._rounds += 1
