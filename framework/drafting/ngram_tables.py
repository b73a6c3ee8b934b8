"""N-gram counts: of a corpus in flat arrays, of a growing text in a dictionary.

L context lengths (0 ... order - 1), V vocabulary.
"""

from collections import Counter, defaultdict
from typing import Any, NamedTuple

import numpy as np

from framework.core.option_error import OptionError, options_under
from framework.core.sequences import FollowsText
from framework.models.target import Target
from framework.prompts.prompt_source import PromptSource

TEXTS_PER_CALL = 64  # batch size of the tokenizer: large enough for its threads, small enough for memory


def tokenised_documents(corpus: PromptSource, target: Target) -> list[np.ndarray]:
    """Token ids of every text of a corpus, from the target's tokenizer.

    Returns:
        One int64 array per text, without special tokens.

    Raises:
        ValueError: the corpus has no tokens, or one outside the vocabulary.
    """
    # An encoder-decoder generates answers, so a text's reference is read in its place if there is one.
    answers = bool(target.model.text_start)
    with options_under("corpus"):
        texts = [text.reference if answers and text.reference else text.text for text in corpus.texts()]
    documents: list[np.ndarray] = []
    for begin in range(0, len(texts), TEXTS_PER_CALL):
        # Not verbose: the tokenizer would warn of texts longer than the model's context.
        encoded = target.tokenizer(texts[begin : begin + TEXTS_PER_CALL], add_special_tokens=False, verbose=False)
        documents += [np.array(ids, dtype=np.int64) for ids in encoded["input_ids"]]
    largest = max((int(ids.max()) for ids in documents if len(ids)), default=None)
    if largest is None:
        allowed = "a source with at least one text that is not empty"
        raise OptionError("corpus", type(corpus).__name__, allowed, "which holds no tokens")
    if largest >= target.vocabulary_size:
        raise OptionError(
            "corpus",
            type(corpus).__name__,
            f"ids below the target's vocabulary size {target.vocabulary_size}",
            f"which holds token id {largest}: the tokenizer does not belong to this target",
        )
    return documents


class Continuations(NamedTuple):
    """Counts of the tokens that followed a context."""

    tokens: Any  # [M] int64, distinct; or slice(None) for the whole vocabulary
    counts: np.ndarray  # [M], or [V] for the whole vocabulary: occurrences of each token after the context
    total: int  # sum of counts


class NGramTables:
    """Counts of all n-grams of a corpus up to an order: a breadth-first trie in three flat arrays.

    A node is a context; an edge is a token that followed it, with its count. Edges are sorted by (node, token), and
    nodes are numbered in the order of their edges, so that edge i leads to node i + 1. One search in one sorted array
    thus finds a longer context and its edges.
    """

    def __init__(self, documents: list[np.ndarray], *, order: int, vocabulary_size: int):
        """
        Args:
            documents: int64 token ids, each in [0, V); n-grams do not cross document boundaries.
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
            # nodes[s] is the context of `length` tokens that begins at starts[s]; some end their document.
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
        # Later nodes are n-grams of `order` tokens; their continuations are not counted.
        self._num_contexts = num_contexts
        self._of_all = Continuations(slice(None), np.bincount(tokens, minlength=vocabulary_size), len(tokens))

    def most_common(self, number: int) -> np.ndarray:
        """[number] int64: the most frequent tokens, the smallest id on ties; tokens without a count come last."""
        return np.argsort(-self._of_all.counts, kind="stable")[:number]

    def follow(self, node: int | None, token: int) -> int | None:
        """Node of a context extended by a token; None is a context that was never seen."""
        if node is None or node >= self._num_contexts:
            return None
        key = node * self._vocabulary_size + token
        edge = int(self._keys.searchsorted(key))
        return edge + 1 if edge < len(self._keys) and self._keys[edge] == key else None

    def after(self, node: int | None) -> Continuations | None:
        """Continuations of a context; None: there are none."""
        if node == 0:
            return self._of_all
        if node is None or node >= self._num_contexts:
            return None
        edges = slice(self._first_edge[node], self._first_edge[node + 1])
        counts = self._counts[edges]
        if not len(counts):  # the context occurs only at the end of documents
            return None
        return Continuations(self._keys[edges] - node * self._vocabulary_size, counts, int(counts.sum()))


class TextCounts(FollowsText):
    """Counts of all n-grams of a growing text up to an order; the cost per token is independent of its length.

    Attributes:
        tokens: the text.
        distinct: its distinct tokens, in the order of their first occurrences.
    """

    def __init__(self, order: int, vocabulary_size: int):
        """
        Args:
            order: longest n-gram counted.
            vocabulary_size: V.
        """
        self.tokens: list[int] = []
        self.distinct: list[int] = []
        self._longest_context = order - 1
        self._of_all = np.zeros(vocabulary_size, dtype=np.int64)
        self._after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Append one token, and count it after every context that it follows."""
        context = self.tokens[-self._longest_context :] if self._longest_context else []
        for start in range(len(context)):
            self._after[tuple(context[start:])][token] += 1
        if not self._of_all[token]:
            self.distinct.append(token)
        self._of_all[token] += 1
        self.tokens.append(token)

    def after(self, context: tuple[int, ...]) -> Continuations | None:
        """Continuations of a context; None: there are none."""
        if not context:
            return Continuations(slice(None), self._of_all, len(self.tokens))
        counts = self._after.get(context)
        if counts is None:
            return None
        tokens, times = (np.fromiter(each, np.int64, len(counts)) for each in (counts.keys(), counts.values()))
        return Continuations(tokens, times, int(times.sum()))
