"""Speculative sampling, token by token (Leviathan et al., 2023; Chen et al., 2023)."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.verifier import Guarantee


class SpeculativeSampling:
    """Keep a drafted token x with probability min(1, p(x) / q(x)); after the first loss emit from norm((p - q)+).

    Exact for chains: keeping contributes min(p, q), the replacement the rest of p. With a one-hot q this is "keep
    with probability p(x), else draw from p without x"; with a one-hot p it is "equal to the argmax".
    """

    guarantee = Guarantee.EXACT
    token_rule = True

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="speculative_sampling")

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance of keeping all nodes before a row and losing the next one."""
        p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
        return first_loss((p / q).clamp(max=1), q, draft.valid)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where a node was lost, p itself where none was offered."""
        p = target.probs(stop)
        if draft.num_nodes == 0:
            return p
        rows = torch.arange(len(stop), device=stop.device)
        lost = stop.clamp(max=draft.num_nodes - 1)
        if draft.probs is None:
            residual = p.scatter(1, draft.tokens[rows, lost].unsqueeze(1), 0.0)
        elif draft.support is None:
            residual = (p - draft.probs[rows, lost]).clamp(min=0)
        else:
            masses = draft.probs[rows, lost].to(p.dtype)  # a target may be float64
            residual = p.scatter_add(1, draft.support[rows, lost], -masses).clamp(min=0)
        mass = residual.sum(1, keepdim=True)
        # Without mass p equals q up to rounding, and losing was impossible but for rounding: p is right again.
        use_residual = (stop < draft.offered_depth).unsqueeze(1) & (mass > 0)
        return torch.where(use_residual, residual / mass, p)


def require_chain(shape: Shape, *, verifier: str) -> None:
    """
    Raises:
        ValueError: the draft is not a chain; the message names `verifier`, which verifies nothing else.
    """
    if shape is not Shape.CHAIN:
        raise ValueError(
            f"verifier={verifier} verifies chains, but the drafter proposes {shape.name}; "
            "choose another verifier= or drafter="
        )


def first_loss(keep: Tensor, q: Tensor, valid: Tensor) -> Tensor:
    """Law of where a chain ends if its nodes are tested one after another until one is lost.

    Args:
        keep: [B, N] the chance that a node is kept once it is tested.
        q: [B, N] the drafter's probability of each node's token.
        valid: [B, N] bool; what is not offered is lost.

    Returns:
        [B, N + 1]: the chance of keeping all nodes before a row and losing the next one.
    """
    # q = 0 for a drawn token means that q is not the law it was drawn from: no number can be right.
    keep = torch.where(q > 0, keep, torch.nan).where(valid, 0)
    certain = keep.new_ones(len(keep), 1)
    reach = torch.cat([certain, keep.cumprod(1)], 1)
    lose = torch.cat([1 - keep, certain], 1)
    return reach * lose
