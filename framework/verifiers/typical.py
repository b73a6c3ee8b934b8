"""Typical acceptance: accept tokens that the target finds likely enough, whatever the drafter (Medusa)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.validation import check_number
from framework.verifiers.verifier import Guarantee


class TypicalAcceptance:
    """Accept the longest path of nodes with p(x) > min(ε, δ exp(-H(p))), the likelier on ties; then draw from p.

    The larger the entropy H of p, in nats, the lower the bound. Only the last token is drawn, and q is not used: lossy
    above temperature 0. At temperature 0, p is one-hot, H is 0 and the bound is below 1, so that only argmax tokens are
    accepted (Cai et al., 2024).
    """

    guarantee = Guarantee.GREEDY_EXACT
    token_rule = False

    def __init__(self, *, epsilon: float, delta: float):
        """
        Args:
            epsilon: ε, in (0, 1); tokens with p > ε are always accepted.
            delta: δ > 0, factor of exp(-H).

        Raises:
            ValueError: an argument is not a number in its range.
        """
        check_number("epsilon", epsilon, lambda value: 0 < value < 1, "a number in (0, 1)")
        check_number("delta", delta, lambda value: 0 < value < torch.inf, "a number > 0")
        self.epsilon, self.delta = epsilon, delta

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """Every draft is allowed."""

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one at the row where the accepted path ends."""
        p = target.prob_of(draft.tokens)
        bound = self._bound(target).gather(1, draft.parent + 1)
        kept = draft.tree.along((draft.valid & (p > bound)).to(p.dtype)) > 0
        length = torch.where(kept, draft.tree.depth, -1)
        log_p = torch.where(draft.tree.sees[:, :, 1:], p.log().unsqueeze(1), 0.0).sum(2)
        log_p = log_p.masked_fill(length < length.amax(1, keepdim=True), -torch.inf)
        stop_probs = torch.zeros_like(log_p).scatter(1, log_p.argmax(1, keepdim=True), 1.0)
        # q = 0 for a drawn token means that q is not the distribution it was drawn from: even this rule gives NaN.
        impossible = draft.valid & (draft.prob_of_tokens() == 0)
        return stop_probs.masked_fill(impossible.any(1, keepdim=True), torch.nan)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)

    def _bound(self, target: TargetRows) -> Tensor:
        """[B, N + 1]: lower bound on p of an accepted token after each row."""
        entropy = torch.special.entr(target.all_probs).sum(2)
        return (self.delta * (-entropy).exp()).clamp(max=self.epsilon)
