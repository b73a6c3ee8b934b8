"""Block verification: a chain is verified as one block, so that a later node can save an earlier one."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.speculative_sampling import SpeculativeSampling, require_chain
from framework.verifiers.verifier import Guarantee


class BlockVerification:
    """Accept the longest prefix of the chain whose test succeeds, then draw from norm((π p - q)+).

    π of a prefix, updated node by node to min(1, π p(x) / q(x)), is the share of its draws that the target can use. The
    test of a prefix succeeds with probability h = Z / (Z + 1 - π), where Z = Σ (π p - q)+ after it; after the last
    offered node, h = π. No rule for chains accepts more nodes on average. With a one-hot q this is speculative sampling
    (Sun et al., 2025, Block Verification Accelerates Speculative Decoding).
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="block")

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability that a row's test succeeds and all later tests fail."""
        if draft.is_chosen:
            return SpeculativeSampling().stop_probs(target, draft)
        wanted = target.cached(_wanted, draft)
        q = draft.dense_probs(target.logits.shape[2])
        rest = (wanted[:, :-1].unsqueeze(2) * target.all_probs[:, :-1] - q).clamp(min=0).sum(2)
        chance = rest + (1 - wanted[:, :-1])  # in this order it is never smaller than rest
        # Where it is 0, p equals q after this row, and a later test succeeds with certainty.
        succeeds = torch.where(chance != 0, rest / chance, 1.0)
        succeeds = torch.cat([succeeds, wanted[:, -1:]], 1)
        index, last = torch.arange(draft.num_nodes + 1, device=q.device), draft.offered_depth.unsqueeze(1)
        succeeds = torch.where(index == last, wanted, succeeds).where(index <= last, 0)
        succeeds = torch.where(index == 0, 1, succeeds)  # if all other tests fail, the stop is pending
        fails = torch.cat([1 - succeeds[:, 1:], torch.ones_like(succeeds[:, :1])], 1)
        return succeeds * fails.flip(1).cumprod(1).flip(1)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: norm((π p - q)+) before an offered node, p after the last one."""
        if draft.is_chosen:
            return SpeculativeSampling().next_token_probs(target, draft, stop)
        p = target.probs(stop)
        q = draft.probs_of_nodes(stop.clamp(max=draft.num_nodes - 1), p.shape[1])
        rest = (target.cached(_wanted, draft).gather(1, stop.unsqueeze(1)) * p - q).clamp(min=0)
        mass = rest.sum(1, keepdim=True)
        # Without mass, p equals q up to rounding, and only rounding made all later tests fail.
        return torch.where((stop < draft.offered_depth).unsqueeze(1) & (mass > 0), rest / mass, p)


def _wanted(target: TargetRows, draft: Draft) -> Tensor:
    """[B, N + 1]: π of the prefix that ends at each row; 1 at pending, constant after the last offered node."""
    p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
    # q = 0 for a drawn token means that q is not the distribution it was drawn from: no result would be correct.
    ratio = torch.where(q > 0, (p / q).clamp(max=torch.finfo(p.dtype).max), torch.nan).where(draft.valid, 1)
    wanted = [torch.ones_like(p[:, 0])]
    for each in ratio.unbind(1):
        wanted.append((wanted[-1] * each).clamp(max=1))
    return torch.stack(wanted, 1)
