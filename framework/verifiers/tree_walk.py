"""The walk down a tree of chosen tokens: draw from p, and follow where the token was drafted."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.pooled import pooled_of
from framework.verifiers.verifier import Guarantee


class TreeWalk:
    """At every row draw the next token from p; if a child holds it go there, else emit it and stop.

    Exact for any tree of chosen tokens, whoever chose them and however (Medusa's greedy trees, several looked-up
    continuations): every emitted token is drawn from p itself. Nodes that stand for the same tokens are one: what
    follows any of them can be gone on to. On a chain it is speculative sampling with a one-hot q.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: tokens are drawn, not chosen.
        """
        if law is not Law.ONE_HOT:
            raise ValueError(
                f"verifier=tree_walk verifies chosen tokens, but the drafter draws them ({law.name}); "
                "choose verifier=recursive_rejection, or another drafter="
            )

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance of being led to a row and of drawing there what no child holds."""
        pooled = target.once(pooled_of, draft)
        p = pooled.prob_of_tokens(target).where(pooled.is_first, 0)
        in_children = p.new_zeros(len(p), draft.num_nodes + 1).scatter_add(1, pooled.draft.parent + 1, p)
        return pooled.draft.tree.along(p) * (1 - in_children).clamp(min=0)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p without the tokens of the row's children."""
        p = target.probs(stop)
        children = target.once(pooled_of, draft).children(stop)
        held = torch.zeros_like(p).scatter_add(1, draft.tokens, children.to(p.dtype)) > 0
        rest = p.where(~held, 0)
        mass = rest.sum(1, keepdim=True)
        # Without mass the children hold all of p up to rounding, and stopping was impossible but for rounding.
        return torch.where(mass > 0, rest / mass, p)


class WalksChosenTokens(ABC):
    """A rule for drawn tokens, which for chosen ones, and where there are none, is the walk."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: where the walk ends, or the rule."""
        return (TreeWalk().stop_law if draft.is_chosen else self._stop_law)(target, draft)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: what follows the walk, or the rule."""
        return (TreeWalk().replacement if draft.is_chosen else self._replacement)(target, draft, stop)

    @abstractmethod
    def _stop_law(self, target: TargetRows, draft: Draft) -> Tensor: ...

    @abstractmethod
    def _replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor: ...
