"""An n-gram language model as drafter: counted, not trained.

B rows, L context lengths (0 ... order - 1), V vocabulary.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.growing_chain import GrowingChain
from framework.ngram_tables import Continuations, GrowingCounts, NGramTables, tokenised_documents
from framework.prompts.prompt_source import PromptSource
from framework.sampling import Sampling
from framework.sequences import Sequences, catch_up
from framework.target import Target
from framework.whole_numbers import check_whole

SMOOTHINGS = ("longest_context", "laplace", "witten_bell")
LARGEST_ORDER = 100  # every shorter context is counted, too


class NGram:
    """Drafts from the counts of what followed the last order - 1 tokens, in a corpus and in the row's own text.

    Counts are those of nltk's NgramCounter without padding, and the law equals nltk's score at the order used:
    `longest_context` is maximum likelihood at the longest context that was ever continued, `laplace` adds one to
    every count after the full context (nltk.lm.Laplace), `witten_bell` mixes all context lengths
    (nltk.lm.WittenBellInterpolated; Witten and Bell, 1991). Where nothing is known the law is uniform. Temperature,
    top-k, top-p and min-p apply to it as they do to the target's law.

    Counts of a row's own text grow with its committed tokens, so that there is nothing to roll back, and drafting takes
    as long after a long text as after a short one.
    """

    law = Law.IID
    shape = Shape.CHAIN
    on_host = True
    keep_drafting: Callable[[DraftedNode], Tensor] | None = None

    def __init__(
        self, target: Target, *, order: int, smoothing: str, learn_from_context: bool, corpus: PromptSource | None
    ):
        """
        Args:
            target: gives the tokenizer and the vocabulary.
            order: n; the law depends on the last n - 1 tokens.
            smoothing: longest_context, laplace or witten_bell.
            learn_from_context: also count each row's committed tokens, as one further document of that row alone.
            corpus: the texts to count; None counts committed tokens only.

        Raises:
            ValueError: a setting outside its range, or nothing to count; the message names the yaml key.
        """
        check_whole("drafter.order", order, least=1, most=LARGEST_ORDER)
        if smoothing not in SMOOTHINGS:
            raise ValueError(f"drafter.smoothing is {smoothing!r}; allowed: {', '.join(SMOOTHINGS)}")
        if corpus is None and not learn_from_context:
            raise ValueError(
                "drafter.learn_from_context is false and drafter.corpus is null: nothing would be counted. "
                "Set drafter.learn_from_context=true or give a drafter.corpus"
            )
        self.smoothing = smoothing
        self.learn_from_context = learn_from_context
        self.order = order
        self._vocabulary_size = target.vocabulary_size
        documents = [] if corpus is None else tokenised_documents(corpus, target)
        self._tables = NGramTables(documents, order=order, vocabulary_size=target.vocabulary_size)
        self._texts: list[GrowingCounts] = []

    def num_uniforms(self, gamma: int) -> int:
        """One per drafted token."""
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._texts = [GrowingCounts(self.order, self._vocabulary_size) for _ in sequences.texts]

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft a chain of at most gamma tokens; at temperature 0 the likeliest ones."""
        # Which rows are worth it matters to a policy only, and would have to be asked of the device.
        every_row = torch.ones(sequences.num_rows, dtype=torch.bool)
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active.cpu() if self.keep_drafting else every_row,
            sampling=self._sampling,
            uniforms=uniforms.cpu(),
            keep_drafting=self.keep_drafting,
        )
        if self.learn_from_context:
            catch_up(self._texts, sequences)
        contexts = [_Context(self._tables, text, self.order) for text in sequences.texts]
        while chain.add_law(torch.from_numpy(np.stack(list(map(self._law, contexts, self._texts))))):
            for context, token in zip(contexts, chain.last.tolist(), strict=True):
                context.read(token)
        return chain.draft().to(sequences.tokens.device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def _law(self, context: "_Context", text: GrowingCounts) -> np.ndarray:
        """[V] float32: the law of the next token."""
        masses = []
        weight = 1.0
        lengths = [len(context.tokens)] if self.smoothing == "laplace" else range(len(context.tokens), -1, -1)
        for length in lengths:
            known = [self._tables.after(context.nodes[length])]
            if self.learn_from_context:
                known.append(text.after(context.last(length)))
            found = [each for each in known if each is not None]
            seen = sum(each.total for each in found)
            # Every smoothing adds so many imaginary counts to a context, shared out by the law of the next shorter one.
            imaginary = self._imaginary(length, seen, found)
            masses += [(each.tokens, each.counts * (weight / (seen + imaginary))) for each in found]
            weight *= imaginary / (seen + imaginary)
            if not weight:
                break
        law = np.full(self._vocabulary_size, weight / self._vocabulary_size, np.float32)
        for tokens, mass in masses:
            law[tokens] += mass
        return law

    def _imaginary(self, length: int, seen: int, found: list[Continuations]) -> int:
        if self.smoothing == "laplace":
            return self._vocabulary_size
        if self.smoothing == "longest_context" or not length or not seen:
            return int(not seen)
        return _distinct(*(each.tokens for each in found)) if len(found) > 1 else len(found[0].counts)


def _distinct(known: np.ndarray, also: np.ndarray) -> int:
    """How many tokens there are in one array or the other; the first is sorted, and neither holds a token twice."""
    places = np.minimum(known.searchsorted(also), len(known) - 1)
    return len(known) + len(also) - int(np.count_nonzero(known[places] == also))


class _Context:
    """The last tokens of a row, at most order - 1, drafted ones among them, and where they are in the tables."""

    def __init__(self, tables: NGramTables, text: list[int], order: int):
        """
        Args:
            tables: counts of the corpus.
            text: the row's committed tokens.
            order: L.
        """
        self._tables = tables
        self._longest = order - 1
        self.tokens: list[int] = []
        self.nodes: list[int | None] = [0]  # of the last 0, 1, ... tokens
        for token in text[-self._longest :] if self._longest else []:
            self.read(token)

    def read(self, token: int) -> None:
        """Move on by one token."""
        self.nodes = [0, *(self._tables.follow(node, token) for node in self.nodes[: self._longest])]
        self.tokens = [*self.tokens, token][-self._longest :] if self._longest else []

    def last(self, number: int) -> tuple[int, ...]:
        """The last tokens, so many of those there are."""
        return tuple(self.tokens[len(self.tokens) - number :])
