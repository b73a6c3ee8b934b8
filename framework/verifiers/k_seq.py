"""K-SEQ (SpecTr): tokens drawn from one distribution are tested in order, each more strictly than alone."""

import math

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.prefix_merging import merged_of
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class KSeq(WalksChosenTokens):
    """Accept the first of k tokens x ~ q that passes its test, each with probability min(1, p(x) / (ρ q(x))).

    ρ, in [1, k], is the smallest value for which the k tests together give no token more than p. One test passes with
    probability β = Σ min(q, p / ρ), and ρ solves 1 - (1 - β)^k = ρ β. If no token is accepted, the next one is drawn
    from norm((p - ρ q)+), which excludes the rejected tokens. Equal prefixes are merged: k is the number of paths that
    agree with the accepted tokens, and falls as they diverge. With k = 1 this is speculative sampling; for chosen
    tokens it is the tree walk (Sun et al., 2023, SpecTr).
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: siblings are drawn without replacement.
        """
        if scheme is SamplingScheme.WITHOUT_REPLACEMENT and shape is not Shape.CHAIN:
            raise ValueError(
                f"verifier=k_seq verifies siblings drawn independently, but the drafter draws them {scheme.name}; "
                "choose verifier=recursive_rejection, verifier=traversal, or another drafter="
            )

    def _stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of accepting a row's path and rejecting all its children."""
        merged = target.cached(merged_of, draft)
        tree, rho = merged.draft.tree, target.cached(_divisors, draft).gather(1, merged.draft.parent + 1)
        p, q = merged.prob_of_tokens(target), draft.prob_of_tokens()
        # q = 0 for a drawn token means that q is not the distribution it was drawn from: no result would be correct.
        keep = torch.where(q > 0, (p / (rho * q)).clamp(max=1), torch.nan).where(draft.valid, 0)
        return tree.along(merged.at_first(keep * tree.over_elders(1 - keep))) * tree.over_children(1 - keep)

    def _next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where children were rejected, p where none was offered."""
        p, merged = target.probs(stop), target.cached(merged_of, draft)
        q = merged.probs_of_children(stop, p.shape[1]).to(p.dtype)
        rest = (p - target.cached(_divisors, draft).gather(1, stop.unsqueeze(1)) * q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        # Without mass, p equals q up to rounding, and only rounding caused the rejection: p is correct again.
        return torch.where(merged.children(stop).any(1, keepdim=True) & (mass > 0), rest / mass, p)


def _divisors(target: TargetRows, draft: Draft) -> Tensor:
    """[B, N + 1]: ρ of every row's children, after equal prefixes are merged."""
    divisors = torch.ones_like(target.all_probs[:, :, 0])
    if draft.tree.widest <= 1:
        return divisors
    number = draft.tree.num_parents  # merging moves children to earlier rows only
    rows = torch.arange(number, device=divisors.device)
    merged = target.cached(merged_of, draft).draft
    is_child = merged.valid.unsqueeze(1) & (merged.parent.unsqueeze(1) + 1 == rows.unsqueeze(1))
    p = target.all_probs[:, :number]
    q = draft.probs_of_nodes(is_child.int().argmax(2), p.shape[2]).to(p.dtype)
    divisors[:, :number] = divisor(p, q, is_child.sum(2))
    return divisors


def divisor(p: Tensor, q: Tensor, number: Tensor) -> Tensor:
    """[...] ρ, in p's dtype, for `number` [...] int64 tokens drawn from q [..., V] and tested against p [..., V]."""
    k = number.clamp(min=1).to(p.dtype)
    low, step, eps = torch.ones_like(k), k - 1, torch.finfo(p.dtype).eps
    for _ in range(1 - round(math.log2(eps))):
        step = step / 2
        middle = low + step
        # Above 0, so that k tests that accept almost nothing accept k times as much as one.
        beta = torch.minimum(q, p / middle.unsqueeze(-1)).sum(-1).clamp(min=eps**2, max=1)
        all_keep = -torch.expm1(k * torch.log1p(-beta))
        low = torch.where(all_keep <= middle * beta, low, middle)
    return low + step
