"""Drafts that end when a trained head predicts a rejection (SpecDec++; Huang, Guo and Wang, 2024)."""

import torch
from torch import Tensor

from framework.core.draft import DraftedNode, Readout
from framework.core.option_error import OptionError
from framework.core.validation import check_number
from framework.gamma_policies.gamma_policy import check_gamma
from framework.heads.acceptance_head import load_head


class StopHead:
    """Ends a row's draft once the probability that all its tokens are accepted falls below `threshold`.

    A head predicts a_j, the probability that token j is accepted if all tokens before it are. The product of the a_j is
    the probability that all are accepted. Stopping at a constant threshold is the optimal policy of drafting as a
    Markov decision process (Huang et al., whose h is 1 - threshold). The token that takes the product below the
    threshold is still offered, which is exact. Drafters that draft all nodes in one step are not stopped. Each node
    costs one synchronisation with the device.
    """

    _all_kept: Tensor  # [B] float32: the product so far

    def __init__(self, *, max_gamma: int, path: str, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            path: folder of a head, as written by `train training=stop_head`.
            threshold: in [0, 1]; 0: never stop.

        Raises:
            OSError: `path` holds no head.
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.threshold = threshold
        self._path, self._head = path, load_head(path)

    def move_to(self, device: torch.device) -> None:
        self._head.to(device)

    def should_continue(self, node: DraftedNode) -> Tensor:
        """
        Raises:
            ValueError: the head reads a hidden state, and the drafter shows none of that size.
        """
        size, shown = self._head.state_size, 0 if node.hidden is None else node.hidden.shape[1]
        if size and size != shown:
            problem = f"whose head reads a hidden state of size {size}, and the drafter shows {shown or 'none'}"
            raise OptionError(
                "path", self._path, "a head without hidden_state, or one of this drafter's model", problem
            )
        chance = self._head.chance(node)
        self._all_kept = chance if node.depth == 1 else self._all_kept * chance
        return self._all_kept >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
