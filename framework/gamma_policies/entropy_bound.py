"""Drafts that end when the drafter's entropy makes acceptance unlikely (AdaEDL; Agrawal et al., 2024)."""

from torch import Tensor

from framework.core.draft import DraftedNode, Readout
from framework.gamma_policies.gamma_policy import check_gamma, check_number


class EntropyBound:
    """Ends a row's draft after a token whose distribution bounds acceptance by less than `threshold`.

    The lower bound on acceptance is 1 - sqrt(factor * H), with the entropy H in nats. It has the form of Pinsker's
    bound: the less certain the drafter, the more it may differ from the target. The bound depends on the whole
    distribution, not on the drawn token. That token is still offered: it is already drafted, and dropping it would
    neither bias the output nor save time. The published threshold adapts to acceptance; this one is constant
    (`draft_exit` has an adaptive one). Drafters that draft all nodes in one step are not stopped. Each node costs one
    synchronisation with the device.
    """

    def __init__(self, *, max_gamma: int, factor: float, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            factor: factor of the entropy in nats, >= 0; it does not transfer to other vocabularies or temperatures.
            threshold: in [0, 1], least bound on acceptance to continue; 1: continue only after one-hot distributions.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("factor", factor, lambda value: 0 <= value < float("inf"), "a number >= 0")
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.factor = factor
        self.threshold = threshold

    def should_continue(self, node: DraftedNode) -> Tensor:
        return 1 - (self.factor * node.entropy).sqrt() >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
