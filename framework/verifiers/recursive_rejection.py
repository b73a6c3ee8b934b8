"""Recursive rejection: siblings are tested in order, each against the residual left by the earlier ones."""

from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.prefix_merging import MergedPrefixes
from framework.verifiers.residual import Residual
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class RecursiveRejection(WalksChosenTokens):
    """Accept a sibling x with probability min(1, r(x) / d(x)), where r is the residual of p and x was drawn from d.

    Initially r = p and d = q. A rejection sets r to norm((r - d)+). Under WITHOUT_REPLACEMENT, it also removes x from
    d; for siblings drawn independently (IID), d stays q. If all children are rejected, the next token is drawn from r.
    WITHOUT_REPLACEMENT gives the rule of Sequoia (Chen et al., 2024), IID that of SpecInfer (Miao et al., 2024), which
    merges nodes with equal prefixes. On a chain both are speculative sampling; for chosen tokens both are the tree
    walk (`TreeWalk`).
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Every draft is allowed."""

    def _stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of accepting a row's path and rejecting all its children."""
        left = target.cached(_residual, draft)
        tree, keep = left.merged.draft.tree, left.share.where(draft.valid, 0)
        # A rejected token has no mass left in r, so of equal siblings only the first can be accepted.
        return tree.along(keep * tree.over_elders(1 - keep)) * tree.over_children(1 - keep)

    def _next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual of p after the row's children."""
        return target.cached(_residual, draft).distribution(target, stop)


def _residual(target: TargetRows, draft: Draft) -> Residual:
    merged = MergedPrefixes.of(draft)
    # Merging can make any two nodes at one depth siblings.
    groups = draft.tree.groups_by_rank if merged.draft is draft else draft.tree.groups_by_place
    return Residual.of(target, merged, groups, hands_down=False)
