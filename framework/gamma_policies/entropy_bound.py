"""Drafts that end when the drafter's entropy makes acceptance unlikely (AdaEDL; Agrawal et al., 2024)."""

from torch import Tensor

from framework.core.draft import DraftedNode
from framework.core.validation import check_number
from framework.gamma_policies.adaptive_threshold import AdaptiveThreshold


class EntropyBound(AdaptiveThreshold):
    """Ends a row's draft after a token whose distribution bounds acceptance by less than the threshold.

    The lower bound on acceptance is 1 - sqrt(factor * H), with the entropy H in nats. It has the form of Pinsker's
    bound: the less certain the drafter, the more it may differ from the target. The bound depends on the whole
    distribution, not on the drawn token. That token is still offered: it is already drafted, and dropping it would
    neither bias the output nor save time. The published threshold adapts to acceptance; here it does so by the rule of
    `AdaptiveThreshold`, since the published rule was not available, or is constant.
    """

    def __init__(
        self,
        *,
        max_gamma: int,
        factor: float,
        threshold: float,
        alpha_target: float | None,
        b1: float,
        b2: float,
        eps: float,
    ):
        """
        Args:
            max_gamma: longest draft.
            factor: factor of the entropy in nats, >= 0; it does not transfer to other vocabularies or temperatures.
            threshold: in [0, 1], least bound on acceptance to continue; 1: continue only after one-hot distributions.
            alpha_target: in [0, 1], share of accepted nodes that the threshold is to reach; None: it never moves.
            b1: in [0, 1), weight of the previous acceptance.
            b2: in [0, 1), weight of the previous threshold.
            eps: in [0, 1], step before damping by b2; the threshold moves by eps * (1 - b2) per round.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_number("factor", factor, lambda value: 0 <= value < float("inf"), "a number >= 0")
        super().__init__(
            max_gamma=max_gamma, threshold=threshold, alpha_target=alpha_target, b1=b1, b2=b2, eps=eps
        )  # fmt: skip
        self.factor = factor

    def score(self, node: DraftedNode) -> Tensor:
        return 1 - (self.factor * node.entropy).sqrt()
