"""Blockwise acceptance: accept tokens equal or close to the target's best token (Stern et al., 2018)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import argmax
from framework.core.validation import check_whole
from framework.verifiers.speculative_sampling import first_loss, require_chain
from framework.verifiers.verifier import Guarantee


class BlockwiseAcceptance:
    """Accept tokens while each is among the target's `top_k` best or close in id to its best one.

    Closeness is meant for tokens that are quantities with ordered ids, such as pixel intensities. The first
    min_block - 1 tokens of every draft are accepted whatever they are, so that a round commits min_block tokens, the
    target's own included. The next token is drawn from p. Acceptance ignores the temperature (Stern et al., 2018,
    Blockwise Parallel Decoding).

    With top_k=1, distance=0 and min_block=1, only the argmax is accepted: the output equals greedy decoding at
    temperature 0, and does not follow the target's distribution above it. All other settings are LOSSY at every
    temperature.
    """

    token_rule = False

    def __init__(self, *, top_k: int, distance: int, min_block: int):
        """
        Args:
            top_k: worst accepted rank among the target's tokens, >= 1; ties are ranked by id, smallest first.
            distance: largest accepted difference of ids from the target's best token, >= 0.
            min_block: least number of tokens per round, if that many are drafted, >= 1.

        Raises:
            ValueError: an argument is not a whole number in its range.
        """
        for key, value, least in (("top_k", top_k, 1), ("distance", distance, 0), ("min_block", min_block, 1)):
            check_whole(key, value, least=least)
        self.top_k, self.distance, self.min_block = top_k, distance, min_block
        is_exact_match = (top_k, distance, min_block) == (1, 0, 1)
        self.guarantee = Guarantee.GREEDY_EXACT if is_exact_match else Guarantee.LOSSY

    def check(self, scheme: SamplingScheme, shape: Shape) -> None:
        """
        Raises:
            ValueError: the draft is not a chain.
        """
        require_chain(shape, verifier="blockwise")

    def stop_probs(self, target: TargetRows, draft: Draft) -> Tensor:
        """[B, N + 1]: one at the row before the first node that is neither good enough nor forced."""
        logits = target.logits[:, :-1]  # on a chain, row i is the parent of node i
        keep = self._is_good(logits, draft.tokens)
        keep[:, : self.min_block - 1] = True
        # Comparisons hide NaN, which has to reach the distribution.
        chance = torch.where(logits.amax(2).isfinite(), keep.float(), torch.nan)
        return first_loss(chance, draft.prob_of_tokens(), draft.valid)

    def next_token_probs(self, target: TargetRows, draft: Draft, stop: Tensor) -> Tensor:
        """[B, V]: p."""
        return target.probs(stop)

    def _is_good(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """[B, N] bool: whether tokens [B, N] are good enough after logits [B, N, V]."""
        own = logits.gather(2, tokens.unsqueeze(2))
        ids = torch.arange(logits.shape[2], device=logits.device)
        is_better = (logits > own) | ((logits == own) & (ids < tokens.unsqueeze(2)))
        is_close = (tokens - argmax(logits)).abs() <= self.distance
        return (is_better.sum(2) < self.top_k) | is_close
