"""How the nodes of a draft hang together: who stands above whom.

B rows, N nodes. Rows of [pending, nodes...] are numbered 0 to N: pending is row 0 and node i is row i + 1.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from framework.computed_once import computed_once

Turn = slice | Tensor
"""Some of the nodes: an index of the second axis of [B, N, ...]."""


class Tree:
    """The structure of a draft, from the parent of each node; what is asked of it is computed once.

    Where all rows share one structure, hand over an expanded view, and it is looked at once. Where the host knows it,
    too, make it with `shared`, and keep it from round to round. The device is never asked: of other trees the host
    has bounds that hold for any.

    Attributes:
        deepest: no node lies deeper.
        widest: no depth has more nodes.
        num_parents: the row of this number and those behind it have no children.
        turns_down: all nodes, each behind its parent and its elder siblings; those of a turn have different parents.
        turns_of_siblings: all nodes, each behind its elder siblings.
        turns_of_levels: all nodes, each behind those that come before it at its depth.
    """

    is_chain = False

    def __init__(self, parent: Tensor, *, deepest: int | None = None):
        """
        Args:
            parent: [B, N] int64; -1 is a child of pending, and parents come before their children.
            deepest: a depth that no node is below, where the host knows one; None is N.
        """
        self.parent = parent
        self.num_rows, self.num_nodes = parent.shape
        self._parent = parent[:1] if self.num_rows > 0 and parent.stride(0) == 0 else parent
        one_by_one: list[Turn] = [slice(node, node + 1) for node in range(self.num_nodes)]
        self.deepest = self.num_nodes if deepest is None else min(deepest, self.num_nodes)
        self.widest = self.num_nodes
        self.num_parents = self.num_nodes
        self.turns_down = self.turns_of_siblings = self.turns_of_levels = one_by_one

    @classmethod
    def shared(cls, parents: Sequence[int], num_rows: int, device: torch.device) -> Self:
        """One structure for all rows, from the parent of each node, level by level; the host knows all about it."""
        tree = cls(torch.tensor(parents, dtype=torch.int64, device=device).expand(num_rows, -1))
        depth: list[int] = []
        rank: list[int] = []
        place: list[int] = []  # among all nodes of the depth
        for node, above in enumerate(parents):
            rank.append(parents[:node].count(above))
            depth.append(1 if above < 0 else depth[above] + 1)
            place.append(depth[:node].count(depth[node]))
        tree.deepest, tree.widest = max(depth, default=0), max(place, default=-1) + 1
        tree.num_parents = max(parents, default=-2) + 2
        tree.turns_down = tree._turns(list(zip(depth, rank, strict=True)))
        tree.turns_of_siblings, tree.turns_of_levels = tree._turns(rank), tree._turns(place)
        return tree

    def _turns(self, keys: Sequence[Any]) -> list[Turn]:
        """Nodes with the same key at once, the smallest key first."""
        return [self._index([node for node, other in enumerate(keys) if other == key]) for key in sorted(set(keys))]

    def _index(self, nodes: list[int]) -> Turn:
        """A slice where the distances are equal: it is looked up faster."""
        step = nodes[1] - nodes[0] if len(nodes) > 1 else 1
        if nodes == list(range(nodes[0], nodes[-1] + 1, step)):
            return slice(nodes[0], nodes[-1] + 1, step)
        return torch.tensor(nodes, device=self.parent.device)

    def _for_every_row(self, computed: Tensor) -> Tensor:
        return computed.expand(self.num_rows, *computed.shape[1:])

    @computed_once
    def _sees(self) -> Tensor:
        index = torch.arange(self.num_nodes + 1, device=self._parent.device)
        above = torch.cat(
            [self._parent.new_zeros(len(self._parent), 1), self._parent + 1], 1
        )  # pending stands above itself
        sees = (index == index.unsqueeze(1)) | (index == above.unsqueeze(2))
        for _ in range(self.deepest.bit_length()):  # each time twice as far up
            sees = (sees.float() @ sees.float()) > 0
        return sees

    @computed_once
    def sees(self) -> Tensor:
        """[B, N + 1, N + 1] bool: whether the second row is the first one itself or one of its ancestors."""
        return self._for_every_row(self._sees)

    @computed_once
    def _above(self) -> Tensor:
        return self._sees & ~torch.eye(self.num_nodes + 1, dtype=torch.bool, device=self._sees.device)

    @computed_once
    def below(self) -> Tensor:
        """[B, N + 1, N + 1] bool: whether the second row is a descendant of the first one."""
        return self._for_every_row(self._above.transpose(1, 2))

    @computed_once
    def depth(self) -> Tensor:
        """[B, N + 1] int64: of every row; pending's is 0."""
        return self._for_every_row(self._sees.sum(2) - 1)

    @computed_once
    def elder(self) -> Tensor:
        """[B, N, N] bool: whether the second node is a sibling of the first one and comes before it."""
        index = torch.arange(self.num_nodes, device=self._parent.device)
        siblings = self._parent.unsqueeze(2) == self._parent.unsqueeze(1)
        return self._for_every_row(siblings & (index < index.unsqueeze(1)))

    @computed_once
    def _is_child(self) -> Tensor:
        rows = torch.arange(-1, self.num_nodes, device=self._parent.device)
        return self._parent.unsqueeze(1) == rows.unsqueeze(1)

    def path(self, row: Tensor) -> Tensor:
        """Nodes from a child of pending down to a row.

        Args:
            row: [B] int64 in 0..N.

        Returns:
            [B, deepest] int64: the nodes in order; behind them, entry k is k itself.
        """
        on_path = self.sees[torch.arange(self.num_rows, device=row.device), row][:, 1:]
        # What is not on the path is written into a last place that is cut off.
        place = torch.where(on_path, self.depth[:, 1:] - 1, self.deepest)
        index = torch.arange(max(self.num_nodes, self.deepest + 1), device=row.device).expand(self.num_rows, -1)
        return index[:, : self.deepest + 1].scatter(1, place, index[:, : self.num_nodes])[:, :-1]

    def behind(self, marked: Tensor) -> Tensor:
        """[B, N] bool: nodes with an ancestor, other than themselves, among the marked ones [B, N] bool."""
        return (self._above[:, 1:, 1:] & marked.unsqueeze(1)).any(2)

    def along(self, factor: Tensor) -> Tensor:
        """[B, N + 1]: for every row the product of its path's factors [B, N]; 1 for pending."""
        factor = torch.cat([factor.new_ones(len(factor), 1), factor], 1)
        return torch.where(self._sees, factor.unsqueeze(1), 1.0).prod(2)

    def over_children(self, factor: Tensor) -> Tensor:
        """[B, N + 1]: for every row the product of its children's factors [B, N]; 1 where there are none."""
        return torch.where(self._is_child, factor.unsqueeze(1), 1.0).prod(2)

    def over_elders(self, factor: Tensor) -> Tensor:
        """[B, N]: for every node the product of its elder siblings' factors [B, N]; 1 where there are none."""
        return torch.where(self.elder, factor.unsqueeze(1), 1.0).prod(2)


class Chain(Tree):
    """Node i hangs on node i - 1: the answers are known without looking."""

    is_chain = True

    def __init__(self, parent: Tensor):
        super().__init__(parent)
        self.widest = min(self.num_nodes, 1)
        self.turns_of_siblings = self.turns_of_levels = [slice(0, self.num_nodes)]

    @computed_once
    def _sees(self) -> Tensor:
        index = torch.arange(self.num_nodes + 1, device=self._parent.device)
        return (index <= index.unsqueeze(1)).unsqueeze(0)

    @computed_once
    def depth(self) -> Tensor:
        return torch.arange(self.num_nodes + 1, device=self._parent.device).expand(self.num_rows, -1)

    def path(self, row: Tensor) -> Tensor:
        return torch.arange(self.num_nodes, device=row.device).expand(self.num_rows, -1)

    def behind(self, marked: Tensor) -> Tensor:
        return (marked.cumsum(1) - marked.long()) > 0
