"""K-SEQ: several tokens drawn from one law are tested in turn, each more strictly than it would be alone (SpecTr)."""

import math

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.pooled import pooled_of
from framework.verifiers.tree_walk import WalksChosenTokens
from framework.verifiers.verifier import Guarantee


class KSeq(WalksChosenTokens):
    """Keep the first of k tokens x ~ q that passes its test, of probability min(1, p(x) / (ρ q(x))) each.

    ρ, in [1, k], is the smallest for which all k tests together give no token more than p: with β = Σ min(q, p / ρ)
    for one test to be passed, that is where 1 - (1 - β)^k = ρ β. What is left to emit from if none is kept is then
    norm((p - ρ q)+), which holds no token that was lost. Paths that hold the same tokens are one: k is the number of
    drafts that agree with what was kept so far, and falls as they part. With k = 1 this is speculative sampling, and
    for chosen tokens the walk down the tree (Sun et al., 2023, SpecTr).
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: siblings are drawn without replacement.
        """
        if law is Law.WITHOUT_REPLACEMENT and shape is not Shape.CHAIN:
            raise ValueError(
                f"verifier=k_seq verifies siblings drawn independently, but the drafter draws them {law.name}; "
                "choose verifier=recursive_rejection, verifier=traversal, or another drafter="
            )

    def _stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance of keeping a row's path, and of losing all its children."""
        pooled = target.once(pooled_of, draft)
        tree, rho = pooled.draft.tree, target.once(_divisors, draft).gather(1, pooled.draft.parent + 1)
        p, q = pooled.prob_of_tokens(target), draft.prob_of_tokens()
        # q = 0 for a drawn token means that q is not the law it was drawn from: no number can be right.
        keep = torch.where(q > 0, (p / (rho * q)).clamp(max=1), torch.nan).where(draft.valid, 0)
        return tree.along(pooled.at_first(keep * tree.over_elders(1 - keep))) * tree.over_children(1 - keep)

    def _replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where children were lost, p itself where none was offered."""
        p, pooled = target.probs(stop), target.once(pooled_of, draft)
        q = pooled.probs_of_children(stop, p.shape[1]).to(p.dtype)
        rest = (p - target.once(_divisors, draft).gather(1, stop.unsqueeze(1)) * q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        # Without mass p equals q up to rounding, and losing was impossible but for rounding: p is right again.
        return torch.where(pooled.children(stop).any(1, keepdim=True) & (mass > 0), rest / mass, p)


def _divisors(target: TargetRows, draft: Draft) -> Tensor:
    """[B, N + 1]: ρ of every row's children, once equal paths are one."""
    divisors = torch.ones_like(target.all_probs[:, :, 0])
    if draft.tree.widest <= 1:
        return divisors
    number = draft.tree.num_parents  # what is pooled hangs on the first row of a class, not behind it
    rows = torch.arange(number, device=divisors.device)
    pooled = target.once(pooled_of, draft).draft
    is_child = pooled.valid.unsqueeze(1) & (pooled.parent.unsqueeze(1) + 1 == rows.unsqueeze(1))
    p = target.all_probs[:, :number]
    q = draft.probs_of_nodes(is_child.int().argmax(2), p.shape[2]).to(p.dtype)
    divisors[:, :number] = divisor(p, q, is_child.sum(2))
    return divisors


def divisor(p: Tensor, q: Tensor, number: Tensor) -> Tensor:
    """[...]: ρ for `number` [...] int64 tokens drawn from q [..., V], of p's dtype, and tested against p [..., V]."""
    k = number.clamp(min=1).to(p.dtype)
    low, step, eps = torch.ones_like(k), k - 1, torch.finfo(p.dtype).eps
    for _ in range(1 - round(math.log2(eps))):
        step = step / 2
        middle = low + step
        # Above 0, so that the k tests that keep next to nothing keep k times as much as one of them.
        beta = torch.minimum(q, p / middle.unsqueeze(-1)).sum(-1).clamp(min=eps**2, max=1)
        all_keep = -torch.expm1(k * torch.log1p(-beta))
        low = torch.where(all_keep <= middle * beta, low, middle)
    return low + step
