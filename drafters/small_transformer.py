"""A small language model drafts for a large one (Leviathan et al., 2023; Chen et al., 2023)."""

from collections.abc import Callable

import torch
from torch import Tensor

from framework.cached_lm import CachedLM
from framework.draft import Draft, Law, Outcome, Shape
from framework.sampling import Sampling, argmax, draw
from framework.sequences import Sequences
from framework.target import Target


class SmallTransformer:
    """Draws a chain from a small model of its own, standardised like the target."""

    law = Law.IID
    shape = Shape.CHAIN

    def __init__(self, target: Target, *, model: Callable[[Target], CachedLM]):
        """
        Args:
            target: whose vocabulary and tokenizer the model must share.
            model: builds the small model for that target.

        Raises:
            ValueError: the tokenizers differ, or the model cannot be served.
        """
        self.model = model(target)

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.model.begin(*sequences.tokens.shape)
        self.model.catch_up(sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        logits = self.model.catch_up(sequences)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        for i in range(gamma):
            if i:
                read = self.model.forward(
                    tokens[-1].unsqueeze(1), sequences.lengths + (i - 1), visible=sequences.longest + i
                )
                logits = read[:, 0]
            if self._sampling.greedy:
                tokens.append(argmax(logits))
            else:
                probs.append(self._sampling.probs(logits))
                tokens.append(draw(probs[-1], uniforms[:, i]))
        drafted = torch.stack(tokens, 1)
        if self._sampling.greedy:
            return Draft.chain(drafted, Law.ONE_HOT)
        return Draft.chain(drafted, Law.IID, probs=torch.stack(probs, 1))

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        # Drafting read pending and all nodes but the last, so that many slots stay good where they were accepted.
        num_read = outcome.num_accepted.clamp(max=outcome.draft.num_nodes - 1)
        if outcome.draft.num_nodes:
            before = sequences.lengths - outcome.num_committed
            self.model.cached = torch.minimum(before + num_read, sequences.lengths)
