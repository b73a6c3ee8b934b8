"""Recursive rejection: siblings are tested one after another, each against what its elders left of p."""

from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.leftover import Leftover
from framework.verifiers.pooled import Pooled
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class RecursiveRejection(WalksChosenTokens):
    """Keep a sibling x with probability min(1, r(x) / d(x)), where r is what is left of p and d what x was drawn from.

    At first r is p and d is q. After a loss r becomes norm((r - d)+); under WITHOUT_REPLACEMENT d loses x, for
    siblings drawn independently (IID) it stays q. Where all children are lost, r is emitted from. The first is the
    rule of Sequoia (Chen et al., 2024), the second that of SpecInfer (Miao et al., 2024), which takes nodes that stand
    for the same tokens as one. On a chain both are speculative sampling, for chosen tokens the walk down the tree.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """Take any draft."""

    def _stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance of keeping a row's path, and of losing all its children."""
        left = target.once(_leftover, draft)
        tree, keep = left.pooled.draft.tree, left.share.where(draft.valid, 0)
        # A token that was lost has nothing left in r: of equal siblings, none is kept but the first.
        return tree.along(keep * tree.over_elders(1 - keep)) * tree.over_children(1 - keep)

    def _replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: what is left of p after the row's children."""
        return target.once(_leftover, draft).law(target, stop)


def _leftover(target: TargetRows, draft: Draft) -> Leftover:
    pooled = Pooled.of(draft)
    # Pooling makes siblings of any nodes at one depth.
    turns = draft.tree.turns_of_siblings if pooled.draft is draft else draft.tree.turns_of_levels
    return Leftover.of(target, pooled, turns, hands_down=False)
