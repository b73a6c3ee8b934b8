"""The walk down a tree of chosen tokens: draw from p and follow the child with that token."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.prefix_merging import merged_of
from framework.verifiers.verifier import Guarantee


class TreeWalk:
    """Draw the next token from p at every row; move to the child that holds it, otherwise emit it and stop.

    Exact for any tree of chosen tokens, however they were chosen (Medusa's greedy trees, several looked-up
    continuations): every emitted token is drawn from p. Nodes with equal prefixes are merged, so that the walk can
    continue below any of them. On a chain this is speculative sampling with a one-hot q.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: tokens are drawn, not chosen.
        """
        if scheme is not SamplingScheme.ONE_HOT:
            raise ValueError(
                f"verifier=tree_walk verifies chosen tokens, but the drafter draws them ({scheme.name}); "
                "choose verifier=recursive_rejection, or another drafter="
            )

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of reaching a row and drawing a token that none of its children holds."""
        merged = target.cached(merged_of, draft)
        p = merged.prob_of_tokens(target).where(merged.is_first, 0)
        in_children = p.new_zeros(len(p), draft.num_nodes + 1).scatter_add(1, merged.draft.parent + 1, p)
        return merged.draft.tree.along(p) * (1 - in_children).clamp(min=0)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p without the tokens of the row's children, normalised."""
        p = target.probs(stop)
        children = target.cached(merged_of, draft).children(stop)
        held = torch.zeros_like(p).scatter_add(1, draft.tokens, children.to(p.dtype)) > 0
        rest = p.where(~held, 0)
        mass = rest.sum(1, keepdim=True)
        # Without mass, the children hold all of p up to rounding, and only rounding caused the stop.
        return torch.where(mass > 0, rest / mass, p)


class WalksChosenTokens(ABC):
    """A rule for drawn tokens that is the tree walk for chosen tokens and for empty drafts."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: distribution of the stop, of the tree walk or of the rule."""
        return (TreeWalk().stop_probs if draft.is_chosen else self._stop_probs)(target, draft)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: distribution of the next token, of the tree walk or of the rule."""
        return (TreeWalk().next_token_probs if draft.is_chosen else self._next_token_probs)(target, draft, stop)

    @abstractmethod
    def _stop_probs(self, target: TargetRows, draft: Draft) -> Tensor: ...

    @abstractmethod
    def _next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor: ...
