"""Drafts that end after an unlikely token (Hugging Face's "dynamic speculation"; Mamou et al., 2024)."""

from torch import Tensor

from framework.core.draft import DraftedNode, Readout
from framework.core.validation import check_number
from framework.gamma_policies.gamma_policy import check_gamma


class ConfidenceThreshold:
    """Ends a row's draft after a token to which the drafter gives a probability below `threshold`.

    That token is still offered: whether the next node exists then depends on its ancestors only, which is exact.
    Dropping the token itself would bias the output. Drafters that draft all nodes in one step are not stopped.
    Each node costs one synchronisation with the device.
    """

    def __init__(self, *, max_gamma: int, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            threshold: in [0, 1]; 0: never stop; 1: continue only after tokens of probability 1.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.threshold = threshold

    def should_continue(self, node: DraftedNode) -> Tensor:
        return node.confidence >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
