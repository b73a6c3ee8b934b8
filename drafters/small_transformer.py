"""A small language model drafts for a large one (Leviathan et al., 2023; Chen et al., 2023)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from framework.cached_lm import CachedLM
from framework.coarse_law import BITS
from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.growing_chain import GrowingChain
from framework.lesson import Lesson
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target
from framework.whole_numbers import check_whole


class SmallTransformer:
    """Draws a chain from a small model of its own, standardised like the target."""

    law = Law.IID
    shape = Shape.CHAIN
    keep_drafting: Callable[[DraftedNode], Tensor] | None = None

    def __init__(
        self,
        target: Target,
        *,
        model: Callable[[Target], CachedLM],
        top_k: int | None = None,
        bits: int | None = None,
    ):
        """
        Args:
            target: whose vocabulary and tokenizer the model must share.
            model: builds the small model for that target.
            top_k: draw from so many likeliest tokens only. q is then that law, with top_k entries in place of a
                vocabulary of them; what it lacks of p is made up for by the rule. None draws from all.
            bits: round q to so many before drawing, so that it can be sent in few bytes (`drafters.remote`); None
                leaves it as it is.

        Raises:
            ValueError: top_k or bits is out of range, the tokenizers differ, or the model cannot be served.
        """
        check_whole("drafter.top_k", top_k, least=1, or_null=True)
        if bits is not None and (isinstance(bits, bool) or bits not in BITS):
            allowed = " or ".join(map(str, BITS))
            raise ValueError(f"drafter.bits is {bits!r}; allowed: {allowed}, or null for the law as it is")
        self._top_k, self._bits = top_k, bits
        self.model = model(target)

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.model.begin_with(sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            keep_drafting=self.keep_drafting,
            top_k=self._top_k,
            bits=self._bits,
        )
        logits = self.model.catch_up(sequences)
        while chain.add(logits):
            read = chain.num_nodes
            logits = self.model.forward(
                chain.last.unsqueeze(1), sequences.lengths + (read - 1), visible=sequences.longest + read
            )[:, 0]
        return chain.draft()

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self.model.keep_accepted(sequences, outcome)

    def rewind(self, sequences: Sequences) -> None:
        self.model.rewind(sequences)

    @property
    def module(self) -> nn.Module:
        return self.model.model

    @property
    def longest_text(self) -> int:
        return self.model.context

    def logits_of(self, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
        # Filled up behind their ends, where no token of a text looks.
        logits = self.model.uncached(pad_sequence([lesson.tokens[:-1] for lesson in lessons], batch_first=True))
        known = [
            row[len(lesson.tokens) - 1 - len(lesson.p_logits) : len(lesson.tokens) - 1]
            for row, lesson in zip(logits, lessons, strict=True)
        ]
        return torch.cat([lesson.p_logits for lesson in lessons]), torch.cat(known)

    def refresh(self, sequences: Sequences) -> None:
        self.model.begin_with(sequences)
