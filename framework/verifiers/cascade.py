"""Cascade by confidence: the small model's confident tokens stand, whatever the target says. LOSSY."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.validation import check_number
from framework.verifiers.speculative_sampling import SpeculativeSampling, first_loss, require_chain
from framework.verifiers.verifier import Guarantee


class Cascade:
    """Accept confident tokens without a test; test the others as in speculative sampling.

    A cascade asks the large model only where the small one is not confident (Wang et al., 2022, Wisdom of Committees);
    with the target's own first layers as the small model it is an early exit (Schuster et al., 2022, CALM). Confident
    means q(x) >= threshold. At temperature 0 a draft holds no q, and a token counts as confident if the draft goes on
    after it: there, `gamma=confidence_threshold` decides. Without confident tokens the rule is speculative sampling; if
    all are confident, the text is the drafter's.
    """

    guarantee = Guarantee.LOSSY
    token_rule = False

    def __init__(self, *, threshold: float):
        """
        Args:
            threshold: least q of an accepted token, in [0, 1]; 0: every token stands.

        Raises:
            ValueError: threshold is not a number in this range.
        """
        check_number("threshold", threshold, lambda value: 0 <= value <= 1, "a number in [0, 1]")
        self.threshold = threshold
        self._exact_rule = SpeculativeSampling()

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="cascade")

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: probability of accepting all nodes up to a row and rejecting the next one."""
        p, q = target.prob_of(draft.tokens), draft.prob_of_tokens()
        confident = self._is_confident(draft, q)
        # NaN in p has to reach the distribution.
        return first_loss((p / q).clamp(max=1).where(~confident | p.isnan(), 1), q, draft.valid)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: the residual where a node was rejected, p where none was offered."""
        return self._exact_rule.next_token_probs(target, draft, stop)

    def _is_confident(self, draft: Draft, q: Tensor) -> Tensor:
        """[B, N] bool."""
        if not draft.is_chosen:
            return q >= self.threshold
        return torch.cat([draft.valid[:, 1:], torch.zeros_like(draft.valid[:, :1])], 1)
