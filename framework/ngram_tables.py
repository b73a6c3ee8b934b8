"""N-gram counts of a corpus, compiled to flat tensors that are read without any Python per entry.

B rows, L context lengths (0 ... order - 1), V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

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
    texts = [text.text for text in corpus.texts()]
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


class NGramTables:
    """Every n-gram up to an order with its count: a trie in breadth-first order, held in three flat tensors.

    A node is a context; an edge is a token that followed it, with its count. Edges are sorted by (node, token) and
    nodes are numbered as their edges are, so that edge i leads to node i + 1: one search in one sorted tensor both
    finds a longer context and bounds what followed it.

    The id V means "no token": it follows nothing and nothing follows it.
    """

    def __init__(self, documents: list[np.ndarray], *, order: int, vocabulary_size: int, device: torch.device):
        """
        Args:
            documents: int64 token ids, each in [0, V); n-grams do not cross from one document into the next.
            order: longest n-gram counted; contexts have 0 ... order - 1 tokens.
            vocabulary_size: V.
            device: where the tables live.
        """
        self.order = order
        self.vocabulary_size = vocabulary_size
        stride = vocabulary_size + 1
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
                nodes * stride + tokens[starts + length], return_inverse=True, return_counts=True
            )
            keys.append(level)
            counts.append(count)
            nodes = num_nodes + rank
            num_contexts = num_nodes
            num_nodes += len(level)

        all_keys = np.concatenate(keys)
        first_edge = np.searchsorted(all_keys, np.arange(num_contexts + 1) * stride)
        widest = int(np.diff(first_edge).max())
        # Windows may reach beyond the last edge: pad with keys that no node owns.
        padding = np.full(widest + 1, np.iinfo(np.int64).max)
        self._keys = torch.from_numpy(np.concatenate([all_keys, padding])).to(device)
        self._counts = torch.from_numpy(np.concatenate([*counts, 0 * padding]).astype(np.float32)).to(device)
        self._first_edge = torch.from_numpy(first_edge).to(device)
        self._window = torch.arange(widest, device=device)
        self._unknown = num_contexts  # the node of every context that was never seen: it has no edges
        self._start = torch.tensor([0] + [self._unknown] * (order - 1), device=device)

    def start(self, num_rows: int) -> Tensor:
        """[B, L] int64 nodes of every context length where no token was read yet: only the empty context is known."""
        return self._start.expand(num_rows, -1)

    def follow(self, nodes: Tensor, tokens: Tensor) -> Tensor:
        """Nodes [B, L] int64 after reading one more token a row; tokens [B] int64 in [0, V]."""
        wanted = nodes[:, :-1] * (self.vocabulary_size + 1) + tokens.unsqueeze(1)
        edges = torch.searchsorted(self._keys, wanted)
        longer = torch.where(self._keys.take(edges) == wanted, edges + 1, self._unknown)
        return functional.pad(longer, (1, 0))  # the empty context is node 0

    def counts(self, nodes: Tensor) -> Tensor:
        """[B, L, V + 1] float32: how often each token followed each context; column V means nothing."""
        edges = self._first_edge.take(nodes).unsqueeze(2) + self._window
        # An edge of a later node is told by a token beyond the vocabulary.
        tokens = self._keys.take(edges) - (nodes * (self.vocabulary_size + 1)).unsqueeze(2)
        counts = torch.zeros(*nodes.shape, self.vocabulary_size + 1, device=nodes.device)
        return counts.scatter_(2, tokens.clamp_(max=self.vocabulary_size), self._counts.take(edges))
