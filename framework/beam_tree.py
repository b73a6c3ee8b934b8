"""The texts of a beam as they lie in the caches of models: what all share in a row, the rest as a tree behind it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.cached_lm import CachedLM
from framework.tree import Tree


class BeamTree:
    """Tokens that texts under way do not share, and what is drafted behind them; each is one node, read once.

    Nodes are breadth-first and lie behind the last token that all texts share, the root, in slots of their own
    (`CachedLM`). Texts that part hang on different nodes, and nothing is copied. When all agree on a node below the
    root, it is the next root: it lies in the slot of its position already.

    Attributes:
        root: position of the last token that all texts share.
        tokens, parents: of every node; -1 is a child of the root.
    """

    def __init__(self, root: int, models: Sequence[CachedLM]):
        """
        Args:
            root: what lies up to it, in slots of its position, all models have read.
            models: they have one row each, and room for all nodes there will be.
        """
        self.root = root
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._num_read = dict.fromkeys(models, 0)  # nodes from the first one on

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, parent: int, token: int) -> int | None:
        """The node that holds a token behind another node, or behind the root (-1); None where there is none."""
        return self._nodes.get((parent, token))

    def add(self, parent: int, token: int) -> int:
        """The node that holds a token behind another one; a new one, behind all others, where there is none."""
        node = self._nodes.setdefault((parent, token), len(self))
        if node == len(self):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def read(self, model: CachedLM) -> Tensor:
        """[n, V] logits behind the nodes that a model has not read yet, which are the last n, by one pass over them."""
        first = self._num_read[model]
        self._num_read[model] = len(self)
        return model.forward(
            torch.tensor([self.tokens[first:]], device=model.device),
            torch.tensor([self.root], device=model.device),
            visible=self.root + 1 + len(self),
            tree=self._tree(model),
            first=1 + first,
        )[0]

    def keep(self, ends: Sequence[int]) -> list[int]:
        """Forget all nodes but the ends of the texts under way, all equally deep, and what lies above them.

        The ends count as not read yet, since nobody knows any more what follows them.

        Returns:
            the new numbers of the ends.
        """
        kept: set[int] = set()
        for end in ends:
            node = end
            while node >= 0 and node not in kept:
                kept.add(node)
                node = self.parents[node]
        old = sorted(kept)
        for model, num_read in self._num_read.items():
            path = torch.tensor([old], dtype=torch.int64, device=model.device)
            after = torch.tensor([self.root + 1], device=model.device)
            model.keep_path(self._tree(model), path, after=after)
            self._num_read[model] = min(sum(node < num_read for node in old), len(old) - len(ends))
        new = {node: place for place, node in enumerate(old)} | {-1: -1}
        self.tokens = [self.tokens[node] for node in old]
        self.parents = [new[self.parents[node]] for node in old]
        num_shared = self._move_root()
        self._nodes = {key: node for node, key in enumerate(zip(self.parents, self.tokens, strict=True))}
        return [new[end] - num_shared for end in ends]

    def _move_root(self) -> int:
        """Down to the last node that all texts share and all models have read; returns how far."""
        moved = 0
        while self.parents.count(-1) == 1 and min(self._num_read.values()) > 0:
            self.tokens, self.parents = self.tokens[1:], [parent - 1 for parent in self.parents[1:]]
            self._num_read = {model: num_read - 1 for model, num_read in self._num_read.items()}
            moved += 1
        self.root += moved
        return moved

    def _tree(self, model: CachedLM) -> Tree:
        return Tree(torch.tensor([self.parents], dtype=torch.int64, device=model.device))
