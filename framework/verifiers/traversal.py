"""Traversal verification: a tree is verified from its leaves up, so that a later node can save an earlier one."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.prefix_merging import MergedPrefixes
from framework.verifiers.residual import Residual
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class Traversal(WalksChosenTokens):
    """Test the nodes in post-order, descendants and earlier siblings first; the first success ends the round.

    A row has a mass π, the residual r of p, and the distribution d of its next child. Pending starts with π = 1, every
    row with r = p and d = q. A child x starts with its own π = min(1, π r(x) / d(x)). If x and all nodes below it fail,
    its parent continues with (π r - d)+, whose sum Z normalises the new r, and with the new π = Z / (Z + 1 - π). A row
    without children left succeeds with probability π; the next token is then drawn from r (Weng et al., 2025,
    Traversal Verification).

    Siblings may be drawn with or without replacement. Independent siblings with the same token are not merged, so
    K-SEQ often accepts more of them. On a chain this is block verification; for chosen tokens it is the tree walk.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Every draft is allowed."""

    def _stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability that a row succeeds and all rows tested before it fail."""
        mass, tree = target.cached(_residual, draft).mass, draft.tree
        offered = torch.cat([torch.ones_like(draft.valid[:, :1]), draft.valid], 1)
        succeeds = mass.where(offered, 0)
        all_below_fail = torch.where(tree.below, 1 - succeeds.unsqueeze(1), 1.0).prod(2)
        subtree_fails = (1 - succeeds) * all_below_fail
        elders_fail = tree.along(tree.over_elders(subtree_fails[:, 1:]))
        return succeeds * all_below_fail * elders_fail

    def _next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual of p after the row's children."""
        return target.cached(_residual, draft).distribution(target, stop)


def _residual(target: TargetRows, draft: Draft) -> Residual:
    return Residual.of(target, MergedPrefixes.not_at_all(draft), draft.tree.groups_by_depth_and_rank, hands_down=True)
