"""Drafts that end after an unlikely token, with a threshold that adapts to acceptance (Zhang et al., 2024)."""

from torch import Tensor

from framework.core.draft import DraftedNode
from framework.gamma_policies.adaptive_threshold import AdaptiveThreshold


class DraftExit(AdaptiveThreshold):
    """Ends a row's draft after a token to which the drafter gives a probability below the row's threshold."""

    def score(self, node: DraftedNode) -> Tensor:
        return node.confidence
