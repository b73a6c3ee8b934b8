"""A bandit over draft lengths that draws its arms (EXP3Spec of BanditSpec, 2025)."""

from collections.abc import Sequence

from framework.core import bandits
from framework.gamma_policies.bandit import GammaBandit


class Exp3(GammaBandit):
    """EXP3 over draft lengths, with the rewards of `framework.gamma_policies.bandit`.

    It assumes no distribution of the rewards, so it follows a text that changes. Every generation draws its arms from
    the same random numbers, which no other draw uses.
    """

    def __init__(self, *, gammas: list[int], c: float | None, seed: int):
        """
        Args:
            gammas: arms, each >= 0.
            c: as for `framework.gamma_policies.bandit.Bandit`.
            seed: seed of the draws, >= 0.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        self._seed = seed
        super().__init__(gammas=gammas, c=c)

    def _new_algorithm(self, ranges: Sequence[float]) -> bandits.Exp3:
        return bandits.Exp3(ranges, seed=self._seed)
