"""Draft until the drafter doubts its own token (Hugging Face's "dynamic speculation"; Mamou et al., 2024)."""

from torch import Tensor

from framework.draft import DraftedNode, Readout
from framework.gamma_policies.gamma_policy import check_gamma, check_number


class ConfidenceThreshold:
    """Ends a row's draft after a token to which the drafter itself gave less than `threshold`.

    The weak token is still offered: whether the next node exists then depends on its ancestors only, which is exact;
    dropping the token itself would bias the output. A drafter that drafts all nodes at once is not stopped. Asking
    waits for the device once a node.
    """

    def __init__(self, *, max_gamma: int, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            threshold: in [0, 1]: 0 never stops, 1 goes on after certain tokens only.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.threshold = threshold

    def keep_drafting(self, node: DraftedNode) -> Tensor:
        return node.confidence >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
