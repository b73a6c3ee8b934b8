"""N-gram drafter: a language model of counts, without training.

B rows, L context lengths (0 ... order - 1), V vocabulary, S support of a sparse distribution.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences, catch_up, put
from framework.core.validation import check_whole
from framework.drafting.chain_builder import ChainBuilder
from framework.drafting.ngram_tables import Continuations, NGramTables, TextCounts, tokenised_documents
from framework.models.target import Target
from framework.prompts.prompt_source import PromptSource

SMOOTHINGS = ("longest_context", "laplace", "witten_bell")
LARGEST_ORDER = 100  # counts of every shorter context are kept as well


class NGram:
    """Draws a chain from n-gram counts of a corpus and of the row's own text, given the last order - 1 tokens.

    Counts equal those of nltk's NgramCounter without padding, and the distribution equals nltk's score at the order
    used: `longest_context` is maximum likelihood at the longest context with a known continuation, `laplace` adds one
    to every count after the full context (nltk.lm.Laplace), `witten_bell` mixes all context lengths
    (nltk.lm.WittenBellInterpolated; Witten and Bell, 1991). Without any counts the distribution is uniform.
    Temperature, top-k, top-p and min-p apply as they do to the target's distribution.

    Counts of a row's own text include committed tokens only, so nothing is rolled back. The drafting time does not
    depend on the length of the text. With `top_k`, it does not depend on the size of the vocabulary either, but on the
    numbers of distinct tokens in the text and after its last tokens.
    """

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN
    on_host = True
    stepwise = True

    def __init__(
        self,
        target: Target,
        *,
        order: int,
        smoothing: str,
        learn_from_context: bool,
        corpus: PromptSource | None,
        top_k: int | None = None,
    ):
        """
        Args:
            target: provides the tokenizer and the vocabulary.
            order: n; the distribution depends on the last n - 1 tokens.
            smoothing: longest_context, laplace or witten_bell.
            learn_from_context: whether each row's committed tokens are counted as well, as one more document that only
                this row uses.
            corpus: texts to count; None: committed tokens only.
            top_k: S, number of most likely tokens to draw from; the draft holds only their probabilities. None: all.

        Raises:
            ValueError: an option out of range, or nothing to count; the message names the yaml key.
        """
        check_whole("order", order, least=1, most=LARGEST_ORDER)
        check_whole("top_k", top_k, least=1, or_null=True)
        if smoothing not in SMOOTHINGS:
            raise OptionError("smoothing", smoothing, f"{', '.join(SMOOTHINGS)}")
        if corpus is None and not learn_from_context:
            problem = "and corpus is null: nothing would be counted"
            raise OptionError("learn_from_context", learn_from_context, "true, or a corpus", problem)
        self.smoothing = smoothing
        self.learn_from_context = learn_from_context
        self.order = order
        self._vocabulary_size = target.vocabulary_size
        documents = [] if corpus is None else tokenised_documents(corpus, target)
        self._tables = NGramTables(documents, order=order, vocabulary_size=target.vocabulary_size)
        self._common = None if top_k is None else self._tables.most_common(top_k)
        self._texts: list[TextCounts] = []

    def num_uniforms(self, gamma: int) -> int:
        """One per drafted token."""
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._texts = [TextCounts(self.order, self._vocabulary_size) for _ in sequences.texts]

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._texts, rows, [TextCounts(self.order, self._vocabulary_size) for _ in rows])

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        """Draft a chain of at most gamma tokens; at temperature 0 the most likely ones."""
        # Only a gamma policy needs the active rows, and reading them synchronises with the device.
        every_row = torch.ones(sequences.num_rows, dtype=torch.bool)
        chain = ChainBuilder(
            gamma=gamma,
            active=sequences.active.cpu() if should_continue else every_row,
            sampling=self._sampling,
            uniforms=uniforms.cpu(),
            should_continue=should_continue,
        )
        if self.learn_from_context:
            catch_up(self._texts, sequences)
        contexts = [_Context(self._tables, text, self.order) for text in sequences.texts]
        while chain.add_probs(*self._distributions(contexts)):
            for context, token in zip(contexts, chain.last.tolist(), strict=True):
                context.read(token)
        return chain.draft().to(sequences.tokens.device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def _distributions(self, contexts: "list[_Context]") -> list[Tensor]:
        """[B, V] or [B, S] float32 distributions of the next tokens, in the second case with [B, S] int64 token ids."""
        mixtures = [self._mixture(context, text) for context, text in zip(contexts, self._texts, strict=True)]
        if self._common is None:
            return [torch.from_numpy(np.stack([each.probs(self._vocabulary_size) for each in mixtures]))]
        likeliest = [
            each.likeliest(self._common, text.distinct) for each, text in zip(mixtures, self._texts, strict=True)
        ]
        return [torch.from_numpy(np.stack(arrays)) for arrays in zip(*likeliest, strict=True)]

    def _mixture(self, context: "_Context", text: TextCounts) -> "_Mixture":
        """The distribution of the next token."""
        parts = []
        weight = 1.0
        lengths = [len(context.tokens)] if self.smoothing == "laplace" else range(len(context.tokens), -1, -1)
        for length in lengths:
            known = [self._tables.after(context.nodes[length])]
            if self.learn_from_context:
                known.append(text.after(context.last(length)))
            found = [each for each in known if each is not None]
            seen = sum(each.total for each in found)
            # Every smoothing adds imaginary counts to a context, distributed like the next shorter context.
            imaginary = self._imaginary(length, seen, found)
            parts += [(each, weight / (seen + imaginary)) for each in found]
            weight *= imaginary / (seen + imaginary)
            if not weight:
                break
        return _Mixture(parts, weight / self._vocabulary_size)

    def _imaginary(self, length: int, seen: int, found: list[Continuations]) -> int:
        if self.smoothing == "laplace":
            return self._vocabulary_size
        if self.smoothing == "longest_context" or not length or not seen:
            return int(not seen)
        return _distinct(*(each.tokens for each in found)) if len(found) > 1 else len(found[0].counts)


def _distinct(known: np.ndarray, also: np.ndarray) -> int:
    """Size of the union of two arrays of distinct tokens, the first one sorted."""
    places = np.minimum(known.searchsorted(also), len(known) - 1)
    return len(known) + len(also) - int(np.count_nonzero(known[places] == also))


class _Mixture(NamedTuple):
    """A distribution made of weighted counts.

    Attributes:
        parts: counts, each with the probability of one count.
        rest: further probability of every token of the vocabulary.
    """

    parts: list[tuple[Continuations, float]]
    rest: float

    def probs(self, vocabulary_size: int) -> np.ndarray:
        """[V] float32: all probabilities."""
        probs = np.full(vocabulary_size, self.rest, np.float32)
        for counted, share in self.parts:
            probs[counted.tokens] += counted.counts * share
        return probs

    def likeliest(self, common: np.ndarray, text: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The S most likely tokens.

        Args:
            common: [S] int64: the most frequent tokens of the corpus.
            text: distinct tokens of the text.

        Returns:
            [S] float32 probabilities, which sum to 1, and [S] int64 token ids.
        """
        # Any other token has no counts but those of the corpus, and each of the common tokens is at least as likely.
        after = [counted.tokens for counted, _ in self.parts if not isinstance(counted.tokens, slice)]
        tokens = np.unique(np.concatenate([common, np.array(text, np.int64), *after]))
        probs = np.full(len(tokens), self.rest, np.float32)
        for counted, share in self.parts:
            if isinstance(counted.tokens, slice):
                probs += counted.counts[tokens] * share
            else:
                probs[tokens.searchsorted(counted.tokens)] += counted.counts * share
        best = np.argsort(-probs, kind="stable")[: len(common)]
        return probs[best] / probs[best].sum(), tokens[best]


class _Context:
    """The last tokens of a row, at most order - 1 and drafted ones included, with their nodes in the tables."""

    def __init__(self, tables: NGramTables, text: list[int], order: int):
        """
        Args:
            tables: counts of the corpus.
            text: the row's committed tokens.
            order: L, longest n-gram counted.
        """
        self._tables = tables
        self._longest = order - 1
        self.tokens: list[int] = []
        self.nodes: list[int | None] = [0]  # of the last 0, 1, ... tokens
        for token in text[-self._longest :] if self._longest else []:
            self.read(token)

    def read(self, token: int) -> None:
        """Append one token."""
        self.nodes = [0, *(self._tables.follow(node, token) for node in self.nodes[: self._longest])]
        self.tokens = [*self.tokens, token][-self._longest :] if self._longest else []

    def last(self, number: int) -> tuple[int, ...]:
        """The last `number` tokens, at most as many as there are."""
        return tuple(self.tokens[len(self.tokens) - number :])
