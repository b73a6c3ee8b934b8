"""Teacher forcing: compare drafts with the target's output, accept none (Leviathan et al., 2023, Table 3)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.verifiers.verifier import Guarantee


class TeacherForced:
    """Always stop at pending and draw from p: plain decoding with a draft at every position.

    The first node of every draft is tested regardless of earlier drafts, and its overlap averages over all positions
    of the target's own output: the paper's alpha. Other rules test a position only if the drafted tokens before it are
    accepted, and never the position of a bonus token. Exact for any draft, and never faster than plain decoding.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Every draft is allowed."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one at row 0."""
        # q = 0 for a drawn token means that q is not the distribution it was drawn from: even this rule gives NaN.
        impossible = (draft.valid & (draft.prob_of_tokens() == 0)).any(1, keepdim=True)
        first = torch.zeros(len(draft.tokens), draft.num_nodes + 1, device=draft.tokens.device)
        first[:, 0] = 1
        return first.masked_fill(impossible, torch.nan)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)
