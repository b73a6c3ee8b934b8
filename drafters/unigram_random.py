"""Drafting without reading: every token from one fixed law, the floor that other drafters are measured against.

B rows, N = gamma nodes, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.ngram_tables import tokenised_documents
from framework.prompts.prompt_source import PromptSource
from framework.sampling import Sampling, argmax, draw
from framework.sequences import Sequences
from framework.target import Target


class UnigramRandom:
    """Draws every token from one law: uniform over the vocabulary, or the token frequencies of a corpus.

    The unigram drafter of Leviathan et al. (2023, table 3), and the uniform one below it, whose gain is small but
    never negative in theory, because drafting costs next to nothing.
    """

    law = Law.IID
    shape = Shape.CHAIN

    def __init__(self, target: Target, *, distribution: str, corpus: PromptSource | None):
        """
        Args:
            target: gives the tokenizer, the vocabulary and the device.
            distribution: "uniform", which temperature and truncation leave alone; or "corpus", to which they apply
                as they do to the target's law: at temperature 0 it is the most frequent token, always.
            corpus: the texts to count; None with uniform.

        Raises:
            ValueError: an unknown distribution, or one that does not go with the corpus; the message names the key.
        """
        if distribution not in ("uniform", "corpus"):
            raise ValueError(f"drafter.distribution is {distribution!r}; allowed: uniform, corpus")
        if (distribution == "corpus") != (corpus is not None):
            raise ValueError(
                f"drafter.distribution is {distribution}, drafter.corpus is {'not ' if corpus else ''}null; allowed: "
                "corpus with a source of texts, or uniform with null"
            )
        width = target.vocabulary_size
        self._counts: Tensor | None = None
        self._probs = torch.full((width,), 1 / width, device=target.device)
        if corpus is not None:
            counts = np.bincount(np.concatenate(tokenised_documents(corpus, target)), minlength=width)
            self._counts = torch.from_numpy(counts).to(target.device)

    def num_uniforms(self, gamma: int) -> int:
        """One per drafted token."""
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._greedy = self._counts is not None and sampling.greedy
        if self._counts is not None:
            self._probs = sampling.probs(self._counts.double().log()).float()

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft a chain of gamma tokens, drawn independently of the text and of each other."""
        if self._greedy:
            return Draft.chain(argmax(self._probs).expand(sequences.num_rows, gamma), Law.ONE_HOT)
        tokens = draw(self._probs, uniforms)  # one law for all rows and nodes
        return Draft.chain(tokens, self.law, probs=self._probs.expand(*tokens.shape, -1))

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass
