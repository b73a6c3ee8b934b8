"""N-gram counts: of a corpus in flat arrays, and of a text that grows in a dictionary.

L context lengths (0 ... order - 1), V vocabulary.
"""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np

from framework.prompts.prompt_source import PromptSource
from framework.target import Target

TEXTS_PER_CALL = 64  # a tokenizer's batch: large enough for its threads, small enough for memory


def tokenised_documents(corpus: PromptSource, target: Target) -> list[np.ndarray]:
    """Token ids of every text of a corpus, as the target's tokenizer sees it.

    Returns:
        One int64 array per text, without special tokens.

    Raises:
        ValueError: there are no tokens, or one lies outside the vocabulary.
    """
    # A model with an encoder writes what answers a text, where that is known.
    answers = bool(target.model.text_start)
    texts = [text.reference if answers and text.reference else text.text for text in corpus.texts()]
    documents: list[np.ndarray] = []
    for begin in range(0, len(texts), TEXTS_PER_CALL):
        # The texts need not fit into the model's context, of which a tokenizer would warn.
        encoded = target.tokenizer(texts[begin : begin + TEXTS_PER_CALL], add_special_tokens=False, verbose=False)
        documents += [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    largest = max((int(ids.max()) for ids in documents if len(ids)), default=None)
    if largest is None:
        raise ValueError("drafter.corpus holds no tokens; allowed: a source with at least one text that is not empty")
    if largest >= target.vocabulary_size:
        raise ValueError(
            f"drafter.corpus holds token id {largest}; allowed: ids below the target's vocabulary size "
            f"{target.vocabulary_size}; the tokenizer does not belong to this target"
        )
    return documents


class Continuations(NamedTuple):
    """What followed a context."""

    tokens: Any  # [M] int64, each at most once; or slice(None), all there are
    counts: np.ndarray  # [M], or [V] for all tokens: how often each of them did
    total: int  # their sum


class NGramTables:
    """Every n-gram of a corpus up to an order with its count: a trie in breadth-first order, held in three flat arrays.

    A node is a context; an edge is a token that followed it, with its count. Edges are sorted by (node, token) and
    nodes are numbered as their edges are, so that edge i leads to node i + 1: one search in one sorted array both
    finds a longer context and bounds what followed it.
    """

    def __init__(self, documents: list[np.ndarray], *, order: int, vocabulary_size: int):
        """
        Args:
            documents: int64 token ids, each in [0, V); n-grams do not cross from one document into the next.
            order: longest n-gram counted; contexts have 0 ... order - 1 tokens.
            vocabulary_size: V.
        """
        self._vocabulary_size = vocabulary_size
        tokens = np.concatenate([np.empty(0, dtype=np.int64), *documents])
        sizes = np.array([len(ids) for ids in documents], dtype=np.int64)
        ends = np.repeat(sizes.cumsum(), sizes)

        keys, counts = [], []
        starts = np.arange(len(tokens))
        nodes = np.zeros(len(tokens), dtype=np.int64)
        num_nodes = num_contexts = 1
        for length in range(order):
            # nodes[s] is the context of `length` tokens that begins at starts[s]; some have nothing after them.
            followed = starts + length < ends[starts]
            starts, nodes = starts[followed], nodes[followed]
            level, rank, count = np.unique(
                nodes * vocabulary_size + tokens[starts + length], return_inverse=True, return_counts=True
            )
            keys.append(level)
            counts.append(count)
            nodes = num_nodes + rank
            num_contexts = num_nodes
            num_nodes += len(level)

        self._keys = np.concatenate(keys)
        self._counts = np.concatenate(counts)
        self._first_edge = np.searchsorted(self._keys, np.arange(num_contexts + 1) * vocabulary_size)
        # Behind the contexts: one that was never seen, and those of `order` tokens. Nothing is known to follow them.
        self._num_contexts = num_contexts
        self._of_all = Continuations(slice(None), np.bincount(tokens, minlength=vocabulary_size), len(tokens))

    def follow(self, node: int | None, token: int) -> int | None:
        """The context that a token makes of another one; None is a context that was never seen."""
        if node is None or node >= self._num_contexts:
            return None
        key = node * self._vocabulary_size + token
        edge = int(self._keys.searchsorted(key))
        return edge + 1 if edge < len(self._keys) and self._keys[edge] == key else None

    def after(self, node: int | None) -> Continuations | None:
        """What followed a context; None where nothing did."""
        if node == 0:
            return self._of_all
        if node is None or node >= self._num_contexts:
            return None
        edges = slice(self._first_edge[node], self._first_edge[node + 1])
        counts = self._counts[edges]
        if not len(counts):  # documents end with it
            return None
        return Continuations(self._keys[edges] - node * self._vocabulary_size, counts, int(counts.sum()))


class GrowingCounts:
    """Every n-gram of one text up to an order with its count. Taking in a token costs the same however long it is."""

    def __init__(self, order: int, vocabulary_size: int):
        """
        Args:
            order: longest n-gram counted.
            vocabulary_size: V.
        """
        self.tokens: list[int] = []
        self._longest_context = order - 1
        self._of_all = np.zeros(vocabulary_size, dtype=np.int64)
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Take in one token: count it after every context that it now follows."""
        context = self.tokens[-self._longest_context :] if self._longest_context else []
        for start in range(len(context)):
            self._after[tuple(context[start:])][token] += 1
        self._of_all[token] += 1
        self.tokens.append(token)

    def after(self, context: tuple[int, ...]) -> Continuations | None:
        """What followed a context; None where nothing did."""
        if not context:
            return Continuations(slice(None), self._of_all, len(self.tokens))
        counts = self._after.get(context)
        if counts is None:
            return None
        tokens, times = (np.fromiter(each, np.int64, len(counts)) for each in (counts.keys(), counts.values()))
        return Continuations(tokens, times, int(times.sum()))
