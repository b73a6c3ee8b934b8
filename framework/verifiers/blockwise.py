"""Blockwise acceptance: keep what agrees with the target's best token, or comes near it (Stern et al., 2018)."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.sampling import argmax
from framework.verifiers.speculative_sampling import first_loss, require_chain
from framework.verifiers.verifier import Guarantee
from framework.whole_numbers import check_whole


class BlockwiseAcceptance:
    """Keep drafted tokens for as long as each is among the target's `top_k` best, or close to its best one as a number.

    The closeness is for tokens that are quantities, such as the brightness of a pixel, whose ids are in order. Of every
    draft the first min_block - 1 tokens are kept whatever they are, so that a round commits min_block tokens, the
    target's own included. What follows is drawn from p. The temperature is not asked for what is kept (Stern et al.,
    2018, Blockwise Parallel Decoding).

    With top_k=1, distance=0 and min_block=1 only the argmax is kept: equal to greedy decoding at temperature 0, and
    above it no law of the target's. With any other value LOSSY at every temperature.
    """

    token_rule = False

    def __init__(self, *, top_k: int, distance: int, min_block: int):
        """
        Args:
            top_k: ranks of the target's that are good enough, >= 1; of equally good tokens the smallest id comes first.
            distance: largest difference of ids from the target's best token that is good enough, >= 0.
            min_block: tokens that a round commits at least, as far as so many are drafted, >= 1.

        Raises:
            ValueError: one of them is not such a number.
        """
        for key, value, least in (("top_k", top_k, 1), ("distance", distance, 0), ("min_block", min_block, 1)):
            check_whole(f"verifier.{key}", value, least=least)
        self.top_k, self.distance, self.min_block = top_k, distance, min_block
        is_exact_match = (top_k, distance, min_block) == (1, 0, 1)
        self.guarantee = Guarantee.GREEDY_EXACT if is_exact_match else Guarantee.LOSSY

    def check(self, law: Law, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="blockwise")

    def stop_law(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one before the first node that is not good enough, and not forced."""
        logits = target.logits[:, :-1]  # on a chain, row i is what node i was drafted after
        keep = self._is_good(logits, draft.tokens)
        keep[:, : self.min_block - 1] = True
        # A comparison hides NaN; a law built on it must not.
        chance = torch.where(logits.amax(2).isfinite(), keep.float(), torch.nan)
        return first_loss(chance, draft.prob_of_tokens(), draft.valid)

    def replacement(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)

    def _is_good(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """[B, N] bool, after logits [B, N, V]."""
        own = logits.gather(2, tokens.unsqueeze(2))
        ids = torch.arange(logits.shape[2], device=logits.device)
        is_better = (logits > own) | ((logits == own) & (ids < tokens.unsqueeze(2)))
        is_close = (tokens - argmax(logits)).abs() <= self.distance
        return (is_better.sum(2) < self.top_k) | is_close
