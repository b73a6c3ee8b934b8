"""Draft until the drafter's law is too spread out for its token to be kept (AdaEDL; Agrawal et al., 2024)."""

from torch import Tensor

from framework.draft import DraftedNode, Readout
from framework.gamma_policies.gamma_policy import check_gamma, check_number


class EntropyBound:
    """Ends a row's draft after a token whose law has so many nats H that acceptance may be below `threshold`.

    Acceptance is taken to be at least 1 - sqrt(factor * H), which has the form of Pinsker's bound: the more a small
    model hesitates, the more it may differ from a large one. What counts is how all tokens share the law, not which
    of them was drawn. The token of that law is still offered: it is paid for, and dropping it would bias nothing here
    but save nothing either. The published threshold follows acceptance; ours stays (`draft_exit` has one that moves).
    A drafter that drafts all nodes at once is not stopped. Asking waits for the device once a node.
    """

    def __init__(self, *, max_gamma: int, factor: float, threshold: float):
        """
        Args:
            max_gamma: longest draft.
            factor: >= 0, of the entropy in nats; it does not carry over to other vocabularies or temperatures.
            threshold: in [0, 1]: least bound on acceptance to go on; 1 goes on after certain laws only.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        check_gamma("max_gamma", max_gamma, least=1)
        check_number("factor", factor, lambda value: 0 <= value < float("inf"), "a number >= 0")
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.max_gamma = max_gamma
        self.factor = factor
        self.threshold = threshold

    def keep_drafting(self, node: DraftedNode) -> Tensor:
        return 1 - (self.factor * node.entropy).sqrt() >= self.threshold

    def begin(self) -> None:
        pass

    def next_gamma(self) -> int:
        return self.max_gamma

    def observe(self, readout: Readout) -> None:
        pass
