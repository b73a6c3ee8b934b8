"""A tree of chosen tokens that takes another form every round: grown where the drafter is surest, then cut (EAGLE-2).

B rows, L nodes of a level that grow, K children of each, R nodes that grew so far, V vocabulary, N nodes of the draft.
"""

import torch
from torch import Tensor

from framework.draft import Draft, Law
from framework.tree import Tree


class GrowingTree:
    """A node's value is the drafter's probability of all tokens on its path (EAGLE-2; Li et al., 2024, 2406.16858).

    Every level's most valuable nodes grow children, the likeliest tokens; of all nodes of all levels the most valuable
    ones are kept. No child has more value than its parent, so that with a node its ancestors are kept. Tokens are
    chosen, not drawn: a tree may then depend on anything, and rows have different ones.
    """

    def __init__(self, num_rows: int, *, device: torch.device):
        zeros = torch.zeros(num_rows, 1, device=device)
        # What grows now, pending at first: [B, L] log values and nodes, and [B, L, 1 + R] which of those that grew it
        # sees, itself among them.
        self._values, self._nodes = zeros, zeros.long() - 1
        self.sees = torch.ones_like(zeros, dtype=torch.bool).unsqueeze(2)
        # Of every level: [B, L * K] each.
        self._all_tokens: list[Tensor] = []
        self._all_values: list[Tensor] = []
        self._all_parents: list[Tensor] = []

    @property
    def depth(self) -> int:
        """Levels so far."""
        return len(self._all_tokens)

    def add(self, logits: Tensor, num_children: int) -> None:
        """Give each node that grows its likeliest tokens as children; logits are [B, L, V]."""
        best = logits.float().log_softmax(-1).topk(min(num_children, logits.shape[-1]))
        # Rounding must not make a child more valuable than its parent.
        values = self._values.unsqueeze(2) + best.values.clamp(max=0)
        self._all_tokens.append(best.indices.flatten(1))
        self._all_values.append(values.flatten(1))
        self._all_parents.append(self._nodes.unsqueeze(2).expand_as(values).flatten(1))

    def grow(self, number: int) -> tuple[Tensor, Tensor]:
        """Let the most valuable nodes of the latest level grow, and no others of it.

        Returns:
            their tokens [B, L], and which of the nodes that grew before is the parent of each, [B, L] int64.
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
        # Stable, so that of equal values the parent's comes first.
        kept = values.sort(dim=1, descending=True, stable=True).indices[:, :num_nodes].sort(1).values
        place = torch.zeros_like(parents).scatter(1, kept, torch.arange(num_nodes, device=kept.device).expand_as(kept))
        parent = parents.gather(1, kept)
        parent = torch.where(parent < 0, -1, place.gather(1, parent.clamp(min=0)))
        num_shallow = sum(level.shape[1] for level in self._all_tokens[:deepest])
        valid = kept < num_shallow
        # What is not offered hangs on pending, behind the others, so that no node lies deeper than is allowed.
        tree = Tree(torch.where(valid, parent, -1), deepest=min(deepest, self.depth))
        tokens = torch.cat(self._all_tokens, 1).gather(1, kept)
        return Draft.of_tree(tree, tokens, Law.ONE_HOT, valid=valid)
