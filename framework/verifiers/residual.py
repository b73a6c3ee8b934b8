"""Residuals of p and q at every row as its children are rejected, for rules that test siblings in order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, TargetRows
from framework.core.tree import NodeGroup
from framework.verifiers.prefix_merging import MergedPrefixes


@dataclass(frozen=True)
class Residual:
    """State of every row after all its children are rejected, and the share of each child.

    A row has a mass π, the residual r of p, and the distribution d of its next child; initially r = p and d = q. The
    share of a child x is min(1, π r(x) / d(x)). Its rejection leaves (π r - d)+, whose sum Z normalises the new r, and
    sets π to Z / (Z + 1 - π). r is not stored: it is always (p - c d)+ / m, without the tokens of earlier siblings. A
    rejection adds m / π to c; if x is then removed from d, c shrinks with the mass left in d. d is normalised for every
    child: relative to q, of which earlier siblings may leave less than 1e-38, c would overflow.
    """

    merged: MergedPrefixes
    share: Tensor  # [B, N] share of every node after its earlier siblings are rejected; NaN where q = 0 for its token
    mass: Tensor  # [B, N + 1] π
    _factor: Tensor  # [B, N + 1] c

    @classmethod
    def of(cls, target: TargetRows, merged: MergedPrefixes, groups: list[NodeGroup], *, hands_down: bool) -> "Residual":
        """
        Args:
            target: logits and sampling that define p.
            merged: the nodes, with or without merged prefixes.
            groups: all nodes, earlier siblings first, and with hands_down also parents first.
            hands_down: whether a child starts with its share as its π; otherwise every π is 1.
        """
        draft, p = merged.draft, target.all_probs
        d, drawn = _left_to_draw(draft, draft.dense_probs(p.shape[2]).to(p.dtype), draft.tree.elder)
        kept_mass = _mass_without_own_token(draft, d)
        p_of_token, tokens = merged.prob_of_tokens(target), draft.tokens.unsqueeze(2)
        d_of_token = d.gather(2, tokens).squeeze(2)
        # q = 0 for a drawn token means that q is not the distribution it was drawn from: no result would be correct.
        divisor = torch.where(d_of_token > 0, d_of_token, torch.nan)
        above, rows = draft.parent + 1, torch.arange(len(p), device=p.device).unsqueeze(1)
        factor, norm, mass = torch.zeros_like(p[:, :, 0]), torch.ones_like(p[:, :, 0]), torch.ones_like(p[:, :, 0])
        share = torch.empty_like(p_of_token)
        for group in groups:
            parents, offered = above[:, group], draft.valid[:, group]
            c, m, pi = (state.gather(1, parents) for state in (factor, norm, mass))
            r_of_token = (p_of_token[:, group] - c * d_of_token[:, group]).clamp(min=0) / m
            share[:, group] = (pi * r_of_token / divisor[:, group]).clamp(max=1)
            # Where π is 0 or almost 0, r loses every token that d can draw.
            next_c = (c + m / pi).clamp(max=torch.finfo(p.dtype).max)
            rest = torch.addcmul(p[rows, parents], next_c.unsqueeze(2), d[:, group], value=-1).clamp(min=0)
            next_m = (rest if drawn is None else rest.masked_fill(drawn[:, group], 0)).sum(2)
            # Without rest, only rounding can have rejected the child, or no mass is left to accept with.
            happens = offered & (next_m > 0)
            factor.scatter_(1, parents, torch.where(happens, next_c * kept_mass[:, group], c))
            norm.scatter_(1, parents, torch.where(happens, next_m, m))
            if hands_down:
                rest_of_pi = pi * next_m / m
                chance = rest_of_pi + (1 - pi)  # in this order it is never smaller than the rest
                mass.scatter_(1, parents, torch.where(offered & (chance != 0), rest_of_pi / chance, pi))
                mass[:, 1:][:, group] = share[:, group]
        return cls(merged, share, mass, factor)

    def distribution(self, target: TargetRows, stop: Tensor) -> Tensor:
        """[B, V]: r of row stop[b]; stop [B] int64."""
        p, children = target.probs(stop), self.merged.children(stop).unsqueeze(1)
        q = self.merged.probs_of_children(stop, p.shape[1]).to(p.dtype)
        d, drawn = _left_to_draw(self.merged.draft, q.unsqueeze(1), children)
        rest = (p - self._factor.gather(1, stop.unsqueeze(1)) * d.squeeze(1)).clamp(min=0)
        rest = rest if drawn is None else rest.masked_fill(drawn.squeeze(1), 0)
        mass = rest.sum(1, keepdim=True)
        return torch.where(children.any(2) & (mass > 0), rest / mass, p)


def _left_to_draw(draft: Draft, q: Tensor, elder: Tensor) -> tuple[Tensor, Tensor | None]:
    """Distribution of the next sibling after some nodes are drawn.

    Args:
        draft: the nodes.
        q: [B, M, V] distribution of the first sibling.
        elder: [B, M, N] bool: nodes drawn before; nodes that are not offered are ignored.

    Returns:
        [B, M, V] d, zero where no mass is left; and [B, M, V] bool: tokens drawn before, None if they stay in d.
    """
    if draft.scheme is not SamplingScheme.WITHOUT_REPLACEMENT:
        return q, None
    elder = elder & draft.valid.unsqueeze(1)
    drawn = torch.zeros_like(q).scatter_add(2, draft.tokens.unsqueeze(1).expand_as(elder), elder.to(q.dtype)) > 0
    # A fresh sum: if earlier siblings drew nearly all of q, subtracting their masses would leave rounding errors.
    undrawn = q.masked_fill(drawn, 0)
    mass = undrawn.sum(2, keepdim=True)
    return torch.where(elder.any(2, keepdim=True) & (mass > 0), undrawn / mass, undrawn), drawn


def _mass_without_own_token(draft: Draft, d: Tensor) -> Tensor:
    """[B, N]: mass of d [B, N, V] left after a node's token is removed; 1 for draws with replacement."""
    if draft.scheme is not SamplingScheme.WITHOUT_REPLACEMENT:
        return torch.ones_like(d[:, :, 0])
    return d.scatter(2, draft.tokens.unsqueeze(2), 0.0).sum(2)
