"""Block verification: a chain is judged as one block, in which a later node may save an earlier one."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.speculative_sampling import SpeculativeSampling, require_chain
from framework.verifiers.verifier import Guarantee


class BlockVerification:
    """Keep the longest prefix of the chain whose own test succeeds, and go on from norm((π p - q)+).

    π of a prefix, min(1, π p(x) / q(x)) node after node, is the share of its draws that the target has use for. Its
    test succeeds with probability h = Z / (Z + 1 - π), where Z = Σ (π p - q)+ after it; behind the last offered node
    h = π. No rule for chains keeps more nodes on average. With a one-hot q it is speculative sampling (Sun et al.,
    2025, Block Verification Accelerates Speculative Decoding).
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="block")

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: the chance that a row's test succeeds and all those behind it fail."""
        if draft.is_chosen:
            return SpeculativeSampling().stop_law(target, draft)
        wanted = target.once(_wanted, draft)
        q = draft.dense_probs(target.logits.shape[2])
        rest = (wanted[:, :-1].unsqueeze(2) * target.all_probs[:, :-1] - q).clamp(min=0).sum(2)
        chance = rest + (1 - wanted[:, :-1])  # in this order it is no less than rest
        # Without a chance of either, p equals q behind this row, and a later test succeeds for certain.
        succeeds = torch.where(chance != 0, rest / chance, 1.0)
        succeeds = torch.cat([succeeds, wanted[:, -1:]], 1)
        index, last = torch.arange(draft.num_nodes + 1, device=q.device), draft.offered_depth.unsqueeze(1)
        succeeds = torch.where(index == last, wanted, succeeds).where(index <= last, 0)
        succeeds = torch.where(index == 0, 1, succeeds)  # where all others fail it ends at pending
        fails = torch.cat([1 - succeeds[:, 1:], torch.ones_like(succeeds[:, :1])], 1)
        return succeeds * fails.flip(1).cumprod(1).flip(1)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: norm((π p - q)+) before a node that was offered, p itself behind the last one."""
        if draft.is_chosen:
            return SpeculativeSampling().replacement(target, draft, stop)
        p = target.probs(stop)
        q = draft.probs_of_nodes(stop.clamp(max=draft.num_nodes - 1), p.shape[1])
        rest = (target.once(_wanted, draft).gather(1, stop.unsqueeze(1)) * p - q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        # Without mass p equals q up to rounding, and a later test was to succeed but for rounding.
        return torch.where((stop < draft.offered_depth).unsqueeze(1) & (mass > 0), rest / mass, p)


def _wanted(target: TargetRows, draft: Draft) -> Tensor:
    """[B, N + 1]: π of the prefix that ends at each row; 1 at pending, and unchanged past the last offered node."""
    p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
    # q = 0 for a drawn token means that q is not the law it was drawn from: no number can be right.
    ratio = torch.where(q > 0, (p / q).clamp(max=torch.finfo(p.dtype).max), torch.nan).where(draft.valid, 1)
    wanted = [torch.ones_like(p[:, 0])]
    for each in ratio.unbind(1):
        wanted.append((wanted[-1] * each).clamp(max=1))
    return torch.stack(wanted, 1)
