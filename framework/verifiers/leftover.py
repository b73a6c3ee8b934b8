"""What is left of p and of q at every row as its children are lost: shared by the rules that test siblings in turn."""

from dataclasses import dataclass

import torch
from torch import Tensor

from framework.draft import Draft, Law, TargetRows
from framework.tree import Turn
from framework.verifiers.pooled import Pooled


@dataclass(frozen=True)
class Leftover:
    """Every row once all its children are lost, and how near each child came to being kept.

    A row holds a mass π, what is left of p (r) and what its next child is drawn from (d); at first p and q. A child x
    has π r(x) / d(x), at most 1. Its loss leaves (π r - d)+, whose sum Z gives r its new normaliser and π its new
    value Z / (Z + 1 - π). No law is carried along: r stays (p - c q)+ / m, because d is q without what elder siblings
    drew, by its mass s, so that a loss adds m / (π s) to c. Of a token that can be lost nothing is left in r.
    """

    pooled: Pooled
    share: Tensor  # [B, N] of every node, once its elder siblings are lost; NaN where q = 0 for its token
    mass: Tensor  # [B, N + 1] π
    _factor: Tensor  # [B, N + 1] c; 0 where nothing was lost

    @classmethod
    def of(cls, target: TargetRows, pooled: Pooled, turns: list[Turn], *, hands_down: bool) -> "Leftover":
        """
        Args:
            target: gives p.
            pooled: the nodes, some of which may be taken together.
            turns: all nodes in an order in which elder siblings come first, and parents as well if they hand down.
            hands_down: whether a child begins with its share as its π; else all π are 1.
        """
        draft, p = pooled.draft, target.all_probs
        q = draft.dense_probs(p.shape[2]).to(p.dtype)
        p_of_token = pooled.prob_of_tokens(target)
        q_of_token, rest_of_q = _undrawn(draft, q)
        # q = 0 for a drawn token means that q is not the law it was drawn from: no number can be right.
        d_of_token = torch.where(q_of_token > 0, q_of_token / rest_of_q, torch.nan)
        above, rows = draft.parent + 1, torch.arange(len(p), device=p.device).unsqueeze(1)
        factor, norm, mass = torch.zeros_like(p[:, :, 0]), torch.ones_like(p[:, :, 0]), torch.ones_like(p[:, :, 0])
        share = torch.empty_like(p_of_token)
        for turn in turns:
            parents, offered = above[:, turn], draft.valid[:, turn]
            c, m, pi = (state.gather(1, parents) for state in (factor, norm, mass))
            r_of_token = (p_of_token[:, turn] - c * q_of_token[:, turn]).clamp(min=0) / m
            share[:, turn] = (pi * r_of_token / d_of_token[:, turn]).clamp(max=1)
            # Where π is 0 or next to it, what q can give is lost altogether.
            next_c = (c + m / (pi * rest_of_q[:, turn])).clamp(max=torch.finfo(p.dtype).max)
            next_m = torch.addcmul(p[rows, parents], next_c.unsqueeze(2), q[:, turn], value=-1).clamp(min=0).sum(2)
            # Without rest the child cannot have failed but for rounding, or nothing is left to succeed with.
            happens = offered & (next_m > 0)
            factor.scatter_(1, parents, torch.where(happens, next_c, c))
            norm.scatter_(1, parents, torch.where(happens, next_m, m))
            if hands_down:
                rest = pi * next_m / m
                chance = rest + (1 - pi)  # in this order it is no less than rest
                mass.scatter_(1, parents, torch.where(offered & (chance != 0), rest / chance, pi))
                mass[:, 1:][:, turn] = share[:, turn]
        return cls(pooled, share, mass, factor)

    def law(self, target: TargetRows, stop: Tensor) -> Tensor:
        """[B, V]: r of the rows stop [B] int64."""
        p = target.probs(stop)
        q = self.pooled.probs_of_children(stop, p.shape[1]).to(p.dtype)
        factor = self._factor.gather(1, stop.unsqueeze(1))
        rest = (p - factor * q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        return torch.where((factor > 0) & (mass > 0), rest / mass, p)


def _undrawn(draft: Draft, q: Tensor) -> tuple[Tensor, Tensor]:
    """[B, N] each: q of a node's token, 0 if an elder sibling has drawn it; and q's mass without what these drew."""
    tokens = draft.tokens.unsqueeze(2)
    if draft.law is not Law.WITHOUT_REPLACEMENT:
        q_of_token = q.gather(2, tokens).squeeze(2)
        return q_of_token, torch.ones_like(q_of_token)
    elders = (draft.tree.elder & draft.valid.unsqueeze(1)).to(q.dtype)
    drawn = torch.zeros_like(q).scatter_add(2, draft.tokens.unsqueeze(1).expand_as(elders), elders)
    # Summed up anew: where elders drew nearly all of q, their masses taken off its sum would leave rounding errors.
    undrawn = q.where(drawn == 0, 0)
    mass = undrawn.sum(2)
    return undrawn.gather(2, tokens).squeeze(2), torch.where(elders.any(2) & (mass > 0), mass, 1)
