"""Speculative sampling, token by token (Leviathan et al., 2023; Chen et al., 2023)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.verifier import Guarantee


class SpeculativeSampling:
    """Accept x with probability min(1, p(x) / q(x)); after the first rejection draw from norm((p - q)+).

    Exact for chains: acceptance contributes min(p, q), the replaced token the rest of p. With a one-hot q the rule is
    "accept x with probability p(x), otherwise draw from p without x"; with a one-hot p, "accept x if it is the argmax".
    """

    guarantee = Guarantee.EXACT
    token_rule = True

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="speculative_sampling")

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of accepting all nodes up to a row and rejecting the next one."""
        p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
        return first_loss((p / q).clamp(max=1), q, draft.valid)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where a node was rejected, p where none was offered."""
        p = target.probs(stop)
        if draft.num_nodes == 0:
            return p
        rows = torch.arange(len(stop), device=stop.device)
        rejected = stop.clamp(max=draft.num_nodes - 1)
        if draft.probs is None:
            residual = p.scatter(1, draft.tokens[rows, rejected].unsqueeze(1), 0.0)
        elif draft.support is None:
            residual = (p - draft.probs[rows, rejected]).clamp(min=0)
        else:
            masses = draft.probs[rows, rejected].to(p.dtype)  # a target may be float64
            residual = p.scatter_add(1, draft.support[rows, rejected], -masses).clamp(min=0)
        mass = residual.sum(1, keepdim=True)
        # Without mass, p equals q up to rounding, and only rounding caused the rejection: p is correct again.
        use_residual = (stop < draft.offered_depth).unsqueeze(1) & (mass > 0)
        return torch.where(use_residual, residual / mass, p)


def require_chain(shape: Shape, *, verifier: str) -> None:
    """
    Raises:
        ValueError: the draft is not a chain; the message names `verifier`, which verifies only chains.
    """
    if shape is not Shape.CHAIN:
        raise ValueError(
            f"verifier={verifier} verifies chains, but the drafter proposes {shape.name}; "
            "choose another verifier= or drafter="
        )


def first_loss(keep: Tensor, q: Tensor, valid: Tensor) -> Tensor:
    """Distribution of the stop on a chain whose nodes are tested in order until one is rejected.

    Args:
        keep: [B, N] probability that a tested node is accepted.
        q: [B, N] drafter's probability of each node's token.
        valid: [B, N] bool; nodes that are not offered are rejected.

    Returns:
        [B, N + 1]: probability of accepting all nodes up to a row and rejecting the next one.
    """
    # q = 0 for a drawn token means that q is not the distribution it was drawn from: no result would be correct.
    keep = torch.where(q > 0, keep, torch.nan).where(valid, 0)
    certain = keep.new_ones(len(keep), 1)
    reach = torch.cat([certain, keep.cumprod(1)], 1)
    lose = torch.cat([1 - keep, certain], 1)
    return reach * lose
