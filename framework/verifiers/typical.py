"""Typical acceptance: keep what the target finds likely enough, whoever drafted it (Medusa)."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.verifiers.verifier import Guarantee


class TypicalAcceptance:
    """Keep the longest path of nodes with p(x) > min(ε, δ exp(-H(p))), the likelier of two; then draw from p.

    Where p is spread out, with a large entropy H in nats, less likely tokens are typical of it, too. Nothing is drawn
    but the last token, and q is not asked: lossy above temperature 0. There p is one-hot, H is 0 and the bound below 1,
    so that what is kept is the argmax, node after node (Cai et al., 2024).
    """

    guarantee = Guarantee.GREEDY_EXACT
    token_rule = False

    def __init__(self, *, epsilon: float, delta: float):
        """
        Args:
            epsilon: ε, in (0, 1): what is always likely enough.
            delta: δ > 0: the share of exp(-H) that is.

        Raises:
            ValueError: one of them is not such a number.
        """
        for key, value, allowed, top in (("epsilon", epsilon, "in (0, 1)", 1.0), ("delta", delta, "> 0", torch.inf)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < top:
                raise ValueError(f"verifier.{key} is {value!r}; allowed: a number {allowed}")
        self.epsilon, self.delta = epsilon, delta

    def check(self, law: Law, shape: Shape) -> None:
        """Take any draft."""

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one at the row where the kept path ends."""
        p = target.prob_of(draft.tokens)
        bound = self._bound(target).gather(1, draft.parent + 1)
        kept = draft.tree.along((draft.valid & (p > bound)).to(p.dtype)) > 0
        length = torch.where(kept, draft.tree.depth, -1)
        log_p = torch.where(draft.tree.sees[:, :, 1:], p.log().unsqueeze(1), 0.0).sum(2)
        log_p = log_p.masked_fill(length < length.amax(1, keepdim=True), -torch.inf)
        stop_law = torch.zeros_like(log_p).scatter(1, log_p.argmax(1, keepdim=True), 1.0)
        # q = 0 for a drawn token means that it was not drawn as the draft says; not even this rule goes on then.
        impossible = draft.valid & (draft.prob_of_tokens() == 0)
        return stop_law.masked_fill(impossible.any(1, keepdim=True), torch.nan)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)

    def _bound(self, target: TargetRows) -> Tensor:
        """[B, N + 1]: what a token must exceed after each row."""
        entropy = torch.special.entr(target.all_probs).sum(2)
        return (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
