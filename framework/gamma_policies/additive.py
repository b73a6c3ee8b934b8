"""Two more nodes after a draft that was accepted whole, one fewer after any other (Hugging Face's "heuristic")."""

import torch

from framework.draft import Outcome
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

    def observe(self, outcome: Outcome) -> None:
        if outcome.draft.num_nodes == 0:
            return
        took_part = outcome.active & outcome.draft.valid.any(1)
        lost = took_part & outcome.lost
        anything_offered, anything_lost = torch.stack([took_part.any(), lost.any()]).tolist()
        if anything_offered:
            self._gamma = max(1, self._gamma - 1) if anything_lost else min(self._gamma + 2, self.max_gamma)
