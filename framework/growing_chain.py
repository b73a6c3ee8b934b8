"""A chain of drafted tokens while it grows: what drafters that draft node by node share.

B rows, V vocabulary, S tokens that a sparse law has.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from framework.coarse_law import coarse
from framework.draft import Draft, DraftedNode, Law
from framework.sampling import Sampling, argmax, draw


class GrowingChain:
    """Draws one more token per row, standardised like the target, until the draft is deep enough or nobody goes on.

    A row ends after a token, and that token is still offered: stopping so is exact, dropping it would not be. Once
    all active rows have ended the draft is as short as the longest of them, and so is the target's pass.
    """

    def __init__(
        self,
        *,
        gamma: int,
        active: Tensor,
        sampling: Sampling,
        uniforms: Tensor,
        keep_drafting: Callable[[DraftedNode], Tensor] | None,
        top_k: int | None = None,
        bits: int | None = None,
    ):
        """
        Args:
            gamma: largest depth, >= 1.
            active: [B] bool: rows that are worth drafting for.
            sampling: makes the law that tokens are drawn from.
            uniforms: [B, gamma] float64 in [0, 1).
            keep_drafting: asked after every node but the last whether each row goes on; None always does.
            top_k: S: draw from so many likeliest tokens, and hand over their probabilities only; None draws from all.
            bits: round the law to so many before drawing (`coarse`); None leaves it as it is.
        """
        self._gamma = gamma
        self._sampling = sampling
        self._uniforms = uniforms
        self._keep_drafting = keep_drafting
        self._goes_on = active
        self._top_k = top_k
        self._bits = bits
        self._tokens: list[Tensor] = []
        self._probs: list[Tensor] = []
        self._support: list[Tensor] = []
        self._valid: list[Tensor] = []

    @property
    def num_nodes(self) -> int:
        return len(self._tokens)

    @property
    def last(self) -> Tensor:
        """[B] int64: the tokens drawn last."""
        return self._tokens[-1]

    def add(self, logits: Tensor) -> bool:
        """Draw the next token of every row from logits [B, V]; returns whether the chain grows on."""
        if self._sampling.greedy:
            # At temperature 0 every choice would be certain: the drafter's confidence is that of temperature 1.
            likeliest = argmax(logits)
            return self._append(likeliest, likeliest, lambda: logits.float().softmax(1))
        if self._top_k is None:
            return self._draw(self._sampling.probs(logits))
        logits, support = logits.topk(min(self._top_k, logits.shape[1]))
        return self._draw(self._sampling.probs(logits), support)

    def add_law(self, law: Tensor) -> bool:
        """The same from a law [B, V] float32 in place of logits: what they would be at temperature 1."""
        if self._sampling.greedy:
            likeliest = argmax(law)
            return self._append(likeliest, likeliest, lambda: law)
        # Without temperature and truncation the law stands as it is.
        return self._draw(law if self._sampling == Sampling() else self._sampling.probs(law.log()))

    def _draw(self, probs: Tensor, support: Tensor | None = None) -> bool:
        """From probs [B, V], or [B, S] of the tokens in support."""
        if self._bits is not None:
            probs = coarse(probs, self._bits)
        self._probs.append(probs)
        tokens = entry = draw(probs, self._uniforms[:, self.num_nodes])
        if support is not None:
            self._support.append(support)
            tokens = support.gather(1, entry.unsqueeze(1)).squeeze(1)
        return self._append(tokens, entry, lambda: probs)

    def _append(self, tokens: Tensor, entry: Tensor, law: Callable[[], Tensor]) -> bool:
        """Take in one node per row; entry [B] of `law`, [B, V] or [B, S], is its token."""
        self._tokens.append(tokens)
        if self._keep_drafting is not None:
            self._valid.append(self._goes_on)
            if self.num_nodes < self._gamma:
                self._goes_on = self._goes_on & self._keep_drafting(DraftedNode(law(), entry, depth=self.num_nodes))
                return bool(self._goes_on.any())
        return self.num_nodes < self._gamma

    def draft(self) -> Draft:
        """The chain as it stands, at least one node long."""
        tokens = torch.stack(self._tokens, 1)
        valid = torch.stack(self._valid, 1) if self._valid else None
        if self._sampling.greedy:
            return Draft.chain(tokens, Law.ONE_HOT, valid=valid)
        support = torch.stack(self._support, 1) if self._support else None
        return Draft.chain(tokens, Law.IID, probs=torch.stack(self._probs, 1), support=support, valid=valid)
