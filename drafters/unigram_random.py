"""Context-free drafter: every token is drawn from one fixed distribution, as a floor for other drafters.

B rows, N = gamma nodes, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling, argmax, draw
from framework.core.sequences import Sequences
from framework.drafting.ngram_tables import tokenised_documents
from framework.models.target import Target
from framework.prompts.prompt_source import PromptSource


class UnigramRandom:
    """Draws every token from one distribution: uniform over the vocabulary, or the token frequencies of a corpus.

    The corpus variant is the unigram drafter of Leviathan et al. (2023, table 3). The uniform variant is weaker still:
    in theory its gain is small but never negative, because drafting costs almost nothing.
    """

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN

    def __init__(self, target: Target, *, distribution: str, corpus: PromptSource | None):
        """
        Args:
            target: provides the tokenizer, the vocabulary and the device.
            distribution: "uniform", independent of temperature and truncation; or "corpus", to which they apply as they
                do to the target's distribution: at temperature 0 every token is the most frequent one.
            corpus: texts to count; None: with "uniform" only.

        Raises:
            ValueError: an unknown distribution, or one that does not match the corpus; the message names the yaml key.
        """
        if distribution not in ("uniform", "corpus"):
            raise OptionError("distribution", distribution, "uniform, corpus")
        if (distribution == "corpus") != (corpus is not None):
            problem = f"and corpus is {'not ' if corpus else ''}null"
            allowed = "corpus with a source of texts, or uniform with null"
            raise OptionError("distribution", distribution, allowed, problem)
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

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        pass

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft a chain of gamma tokens, drawn independently of the text and of each other."""
        if self._greedy:
            return Draft.chain(argmax(self._probs).expand(sequences.num_rows, gamma), SamplingScheme.ONE_HOT)
        tokens = draw(self._probs, uniforms)  # one distribution for all rows and nodes
        return Draft.chain(tokens, self.scheme, probs=self._probs.expand(*tokens.shape, -1))

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass
