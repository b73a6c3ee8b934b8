"""Traversal verification: a tree is judged from its leaves up, so that a later node may save an earlier one."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.leftover import Leftover
from framework.verifiers.pooled import Pooled
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class Traversal(WalksChosenTokens):
    """Ask the nodes in post-order, descendants and elder siblings first; the first that succeeds ends the round.

    A row holds a mass π, what is left of p (r) and what its next child was drawn from (d); at first 1 at pending, p
    and q. A child x starts with π = min(1, π r(x) / d(x)) of its own. Where it and all below it have failed, the row
    goes on with (π r - d)+, whose sum Z gives r its new normaliser and π its new value Z / (Z + 1 - π). A row without
    children left succeeds with probability π, and r is emitted from (Weng et al., 2025, Traversal Verification).

    Siblings may be drawn with or without replacement. Independent ones that hold the same token are not taken as one,
    so that K-SEQ often keeps more of them. A chain is judged as by block verification, and for chosen tokens this is
    the walk down the tree.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """Take any draft."""

    def _stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance that a row succeeds and all that were asked before it failed."""
        mass, tree = target.once(_leftover, draft).mass, draft.tree
        offered = torch.cat([torch.ones_like(draft.valid[:, :1]), draft.valid], 1)
        succeeds = mass.where(offered, 0)
        all_below_fail = torch.where(tree.below, 1 - succeeds.unsqueeze(1), 1.0).prod(2)
        subtree_fails = (1 - succeeds) * all_below_fail
        elders_fail = tree.along(tree.over_elders(subtree_fails[:, 1:]))
        return succeeds * all_below_fail * elders_fail

    def _replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: what is left of p after the row's children."""
        return target.once(_leftover, draft).law(target, stop)


def _leftover(target: TargetRows, draft: Draft) -> Leftover:
    return Leftover.of(target, Pooled.not_at_all(draft), draft.tree.turns_down, hands_down=True)
