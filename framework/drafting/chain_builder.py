"""Chain of drafted tokens under construction, shared by drafters that draft node by node.

B rows, V vocabulary, S support of a sparse distribution.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from framework.core.draft import Draft, DraftedNode, SamplingScheme
from framework.core.sampling import Sampling, argmax, draw, nucleus
from framework.drafting.quantized_probs import quantize


class ChainBuilder:
    """Draws one token per row and step, until the draft is gamma deep or no active row continues.

    Tokens are standardised like the target's. A row stops after a token, and that token is still offered: stopping
    after it is exact, dropping it would be biased. Once all active rows have stopped, the draft and the target's pass
    are as short as the longest row.
    """

    def __init__(
        self,
        *,
        gamma: int,
        active: Tensor,
        sampling: Sampling,
        uniforms: Tensor,
        should_continue: Callable[[DraftedNode], Tensor] | None,
        top_k: int | None = None,
        top_p: float | None = None,
        bits: int | None = None,
    ):
        """
        Args:
            gamma: largest depth, >= 1.
            active: [B] bool: rows still decoding; only these keep the chain growing.
            sampling: temperature and truncation of the distribution that tokens are drawn from.
            uniforms: [B, gamma] float64 in [0, 1).
            should_continue: decides after every node but the last whether each row continues; None: all rows do.
            top_k: S, number of most likely tokens to draw from; the draft holds only their probabilities. None: all.
            top_p: mass of the most likely tokens to draw from, after top_k; other tokens have q = 0. None: all.
            bits: bits to which the distribution is rounded before drawing (`quantize`); None: no rounding.
        """
        self._gamma = gamma
        self._sampling = sampling
        self._uniforms = uniforms
        self._should_continue = should_continue
        self._goes_on = active
        self._hidden: Tensor | None = None
        self._top_k, self._top_p = top_k, top_p
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

    def add(self, logits: Tensor, support: Tensor | None = None, *, hidden: Tensor | None = None) -> bool:
        """Draw the next token of every row; returns whether the chain continues.

        Args:
            logits: [B, V], or [B, S] of a reduced vocabulary.
            support: [B, S] int64: token ids of the logits; None: all.
            hidden: [B, H] input of the output layer that gave them, for `should_continue`; None: not shown.
        """
        self._hidden = hidden
        if self._sampling.greedy:
            # Confidence is measured at temperature 1, because at temperature 0 every choice is certain.
            likeliest = argmax(logits)
            return self._append(_tokens_of(likeliest, support), likeliest, lambda: logits.float().softmax(1))
        if self._top_k is not None:
            logits, kept = logits.topk(min(self._top_k, logits.shape[1]))
            support = kept if support is None else support.gather(1, kept)
        return self._draw(self._sampling.probs(logits), support)

    def add_probs(self, probs: Tensor, support: Tensor | None = None) -> bool:
        """As `add`, from the distribution at temperature 1 instead of logits.

        Args:
            probs: [B, V] or [B, S] float32.
            support: [B, S] int64: token ids of probs; None: all.
        """
        if self._sampling.greedy:
            likeliest = argmax(probs)
            return self._append(_tokens_of(likeliest, support), likeliest, lambda: probs)
        # The default sampling leaves the distribution unchanged.
        return self._draw(probs if self._sampling == Sampling() else self._sampling.probs(probs.log()), support)

    def _draw(self, probs: Tensor, support: Tensor | None = None) -> bool:
        """Draw from probs [B, V], or from probs [B, S] of the tokens in support."""
        if self._top_p is not None:
            probs = nucleus(probs, self._top_p)
        if self._bits is not None:
            probs = quantize(probs, self._bits)
        self._probs.append(probs)
        entry = draw(probs, self._uniforms[:, self.num_nodes])
        if support is not None:
            self._support.append(support)
        return self._append(_tokens_of(entry, support), entry, lambda: probs)

    def _append(self, tokens: Tensor, entry: Tensor, probs: Callable[[], Tensor]) -> bool:
        """Append one node per row; entry [B] is the index of its token in the distribution, [B, V] or [B, S]."""
        self._tokens.append(tokens)
        if self._should_continue is not None:
            self._valid.append(self._goes_on)
            if self.num_nodes < self._gamma:
                node = DraftedNode(probs(), entry, depth=self.num_nodes, hidden=self._hidden)
                self._goes_on = self._goes_on & self._should_continue(node)
                return bool(self._goes_on.any())
        return self.num_nodes < self._gamma

    def draft(self) -> Draft:
        """The chain so far, at least one node long."""
        tokens = torch.stack(self._tokens, 1)
        valid = torch.stack(self._valid, 1) if self._valid else None
        if self._sampling.greedy:
            return Draft.chain(tokens, SamplingScheme.ONE_HOT, valid=valid)
        support = torch.stack(self._support, 1) if self._support else None
        return Draft.chain(tokens, SamplingScheme.IID, probs=torch.stack(self._probs, 1), support=support, valid=valid)


def _tokens_of(entry: Tensor, support: Tensor | None) -> Tensor:
    """[B] int64: tokens of entries [B] of distributions over the tokens in support [B, S]; None: over all."""
    return entry if support is None else support.gather(1, entry.unsqueeze(1)).squeeze(1)
