"""The hypotheses of a beam in the models' KV caches: a shared prefix, followed by a tree of the tokens that differ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.core.tree import Tree
from framework.models.cached_lm import CachedLM


class BeamTree:
    """Tree of the tokens that the running hypotheses do not share, and of drafted tokens; a model reads each node once.

    Nodes are in breadth-first order, in slots after the root, the last token that all hypotheses share (`CachedLM`).
    Hypotheses that diverge end at different nodes, and no cache entry is copied. When all hypotheses share a node below
    the root, it becomes the root: it already lies in the slot of its position.

    Attributes:
        root: position of the last token that all hypotheses share.
        tokens: token id of every node.
        parents: parent of every node; -1 is the root.
    """

    def __init__(self, root: int, models: Sequence[CachedLM]):
        """
        Args:
            root: every model has read all tokens up to this position, each in the slot of its position.
            models: models with one row each and room for all future nodes.
        """
        self.root = root
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._num_read = dict.fromkeys(models, 0)  # nodes, counted from the first

    def __len__(self) -> int:
        return len(self.tokens)

    def find(self, parent: int, token: int) -> int | None:
        """The child of a node, or of the root (-1), with this token; None: there is none."""
        return self._nodes.get((parent, token))

    def add(self, parent: int, token: int) -> int:
        """The child of a node, or of the root (-1), with this token; appended as the last node if there is none."""
        node = self._nodes.setdefault((parent, token), len(self))
        if node == len(self):
            self.tokens.append(token)
            self.parents.append(parent)
        return node

    def read(self, model: CachedLM) -> Tensor:
        """Read the last n nodes, those new to this model, in one forward pass; returns [n, V] logits after each."""
        first = self._num_read[model]
        self._num_read[model] = len(self)
        return model.forward(
            torch.tensor([self.tokens[first:]], device=model.device),
            torch.tensor([self.root], device=model.device),
            visible=self.root + 1 + len(self),
            tree=self._tree(model),
            first=1 + first,
        ).logits[0]

    def keep(self, ends: Sequence[int]) -> list[int]:
        """Keep the ends of the running hypotheses, all at one depth, and their ancestors; drop all other nodes.

        The ends count as unread, since their logits are no longer available.

        Returns:
            the new indices of the ends.
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
        """Move the root to the last node that all hypotheses share and all models have read; returns the distance."""
        moved = 0
        while self.parents.count(-1) == 1 and min(self._num_read.values()) > 0:
            self.tokens, self.parents = self.tokens[1:], [parent - 1 for parent in self.parents[1:]]
            self._num_read = {model: num_read - 1 for model, num_read in self._num_read.items()}
            moved += 1
        self.root += moved
        return moved

    def _tree(self, model: CachedLM) -> Tree:
        return Tree(torch.tensor([self.parents], dtype=torch.int64, device=model.device))
