"""Draft until a trained head expects a rejection (SpecDec++; Huang, Guo and Wang, 2024)."""

from torch import Tensor

from framework.acceptance_head import load_head
from framework.draft import DraftedNode, Readout
from framework.gamma_policies.gamma_policy import check_gamma, check_number


class StopHead:
    """Ends a row's draft once the probability that all its tokens are kept falls below `threshold`.

    A head gives each token's probability of being kept if those before it are, a_j; their product is that of all. To
    stop at a constant is the optimal policy of the Markov decision process that drafting is (Huang et al., whose h is
    1 - threshold). The token that brought the product down is still offered, which is exact. A drafter that drafts all
    nodes at once is not stopped. Asking waits for the device once a node.
    """

    _all_kept: Tensor  # [B] float32: the product so far

    def __init__(self, *, max_gamma: int, path: str, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            path: folder of a head, as `experiments.train training=stop_head` writes it.
            threshold: in [0, 1]: 0 never stops.

        Raises:
            OSError: no head there.
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.threshold = threshold
        self._head = load_head(path, key="gamma.path")

    def keep_drafting(self, node: DraftedNode) -> Tensor:
        chance = self._head.to(node.law.device).chance(node)
        self._all_kept = chance if node.depth == 1 else self._all_kept * chance
        return self._all_kept >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
