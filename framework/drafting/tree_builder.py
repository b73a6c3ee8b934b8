"""Dynamic draft tree of chosen tokens: grown at the most probable nodes, then pruned (EAGLE-2).

B rows, L growing nodes of a level, K children of each, R nodes grown so far, V vocabulary, N nodes of the draft.
"""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme
from framework.core.tree import Tree


def num_grown(depth: int, *, children: int, growing: int) -> int:
    """Nodes of all levels of a tree, if so many nodes grow per level, each with so many children."""
    total, paths = 0, 1
    for _ in range(depth):
        level = paths * children
        total, paths = total + level, min(growing, level)
    return total


class TreeBuilder:
    """Grows and prunes a tree by the probability of each node's path (EAGLE-2; Li et al., 2024, 2406.16858).

    A node's value is the drafter's probability of all tokens on its path. The most valuable nodes of every level get
    their most likely tokens as children. Of the nodes of all levels the most valuable are kept. No child has a larger
    value than its parent, so the ancestors of a kept node are kept. Tokens are chosen, not drawn, with probabilities at
    temperature 1 whatever the temperature: a tree of chosen tokens may depend on anything. Rows have different trees.
    """

    def __init__(self, num_rows: int, *, device: torch.device):
        zeros = torch.zeros(num_rows, 1, device=device)
        # The growing nodes, pending at first: their [B, L] log values and indices, and a [B, L, 1 + R] mask of the
        # grown nodes that each one sees, itself included.
        self._values, self._nodes = zeros, zeros.long() - 1
        self.sees = torch.ones_like(zeros, dtype=torch.bool).unsqueeze(2)
        # One entry per level, [B, L * K] each.
        self._all_tokens: list[Tensor] = []
        self._all_values: list[Tensor] = []
        self._all_parents: list[Tensor] = []

    @property
    def depth(self) -> int:
        """Number of levels so far."""
        return len(self._all_tokens)

    def add(self, logits: Tensor, num_children: int, support: Tensor | None = None) -> None:
        """Give each growing node its most likely tokens as children.

        Args:
            logits: [B, L, V], or [B, L, S] of a reduced vocabulary.
            num_children: K.
            support: [S] int64: token ids of the logits; None: all.
        """
        best = logits.float().log_softmax(-1).topk(min(num_children, logits.shape[-1]))
        tokens = best.indices if support is None else support[best.indices]
        self.add_children(tokens, best.values)

    def add_children(self, tokens: Tensor, scores: Tensor) -> None:
        """Give each growing node these children.

        Args:
            tokens: [B, L, K] int64, distinct for each node.
            scores: [B, L, K] float32 log-probabilities, or other numbers of at most 0, to add to the node's value.
        """
        # Rounding must not make a child more valuable than its parent.
        values = self._values.unsqueeze(2) + scores.clamp(max=0)
        self._all_tokens.append(tokens.flatten(1))
        self._all_values.append(values.flatten(1))
        self._all_parents.append(self._nodes.unsqueeze(2).expand_as(values).flatten(1))

    def grow(self, number: int) -> tuple[Tensor, Tensor]:
        """Make the most valuable nodes of the latest level the growing ones.

        Returns:
            their tokens [B, L], and the index of each one's parent among the nodes that grew before, [B, L] int64.
        """
        tokens, values = self._all_tokens[-1], self._all_values[-1]
        num_children = values.shape[1] // self._values.shape[1]
        first = sum(level.shape[1] for level in self._all_tokens[:-1])
        self._values, chosen = values.topk(min(number, values.shape[1]))
        self._nodes, above = first + chosen, chosen // num_children
        inherited = self.sees.gather(1, above.unsqueeze(2).expand(-1, -1, self.sees.shape[2]))
        own = torch.eye(chosen.shape[1], dtype=torch.bool, device=chosen.device).expand(len(chosen), -1, -1)
        self.sees = torch.cat([inherited, own], 2)
        return tokens.gather(1, chosen), above

    def draft(self, num_nodes: int, *, deepest: int) -> Draft:
        """The most valuable nodes, breadth-first; those deeper than `deepest` are not offered."""
        values, parents = torch.cat(self._all_values, 1), torch.cat(self._all_parents, 1)
        num_nodes = min(num_nodes, values.shape[1])
        # Stable: a parent comes before a child of equal value.
        kept = values.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes].sort(1).values
        place = torch.zeros_like(parents).scatter(1, kept, torch.arange(num_nodes, device=kept.device).expand_as(kept))
        parent = parents.gather(1, kept)
        parent = torch.where(parent < 0, -1, place.gather(1, parent.clamp(min=0)))
        num_shallow = sum(level.shape[1] for level in self._all_tokens[:deepest])
        valid = kept < num_shallow
        # Nodes that are not offered become children of pending, after the others, so that the tree is not too deep.
        tree = Tree(torch.where(valid, parent, -1), deepest=min(deepest, self.depth))
        tokens = torch.cat(self._all_tokens, 1).gather(1, kept)
        return Draft.of_tree(tree, tokens, SamplingScheme.ONE_HOT, valid=valid)
