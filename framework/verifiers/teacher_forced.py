"""Teacher forcing: keep no draft, only compare it with what the target writes (Leviathan et al., 2023, Table 3)."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.verifier import Guarantee


class TeacherForced:
    """Stop at pending, always, and draw from p: plain decoding, in which a drafter is asked at every position.

    So the first node of every draft is tested, whatever came before it, and its overlap averages over all positions of
    the target's own text: the paper's alpha. Other rules test a position only where the drafter was right before, or
    not at all after the last accepted one. Exact for any draft, and never faster than plain decoding.
    """

    guarantee = Guarantee.EXACT
    token_rule = False

    def check(self, law: Law, shape: Shape) -> None:
        """Take any draft."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one at row 0."""
        # q = 0 for a drawn token means that it was not drawn as the draft says; not even this rule goes on then.
        impossible = (draft.valid & (draft.prob_of_tokens() == 0)).any(1, keepdim=True)
        first = torch.zeros(len(draft.tokens), draft.num_nodes + 1, device=draft.tokens.device)
        first[:, 0] = 1
        return first.masked_fill(impossible, torch.nan)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)
