"""Structure of a draft tree: ancestors, depths and siblings of its nodes.

B rows, N nodes. Rows of [pending, nodes...] are numbered 0 to N: pending is row 0 and node i is row i + 1.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from framework.core.cached_property import cached_property

NodeGroup = slice | Tensor
"""A group of nodes: an index into the second axis of [B, N, ...]."""


class Tree:
    """Structure of a draft, given the parent of each node; derived tensors are computed once, on first use.

    If all rows share one structure, pass an expanded view of `parent`, which is then processed for one row only. If
    the host knows the structure, too, build the tree with `shared` and reuse it across rounds. Nothing here
    synchronises with the device: for other trees, the attributes are bounds that hold for any tree.

    Attributes:
        deepest: upper bound on the depth of a node.
        widest: upper bound on the nodes of one depth.
        num_parents: rows from this number on have no children.
        groups_by_rank: all nodes in groups by rank among siblings: each node after its elder siblings.
        groups_by_depth_and_rank: the same, each node also after its parent; nodes of one group have different parents.
        groups_by_place: all nodes in groups by place at their depth: each node after the earlier ones at its depth.
    """

    is_chain = False

    def __init__(self, parent: Tensor, *, deepest: int | None = None):
        """
        Args:
            parent: [B, N] int64; -1 for a child of pending; parents come before their children.
            deepest: upper bound on the depth of a node; None: N.
        """
        self.parent = parent
        self.num_rows, self.num_nodes = parent.shape
        self._parent = parent[:1] if self.num_rows > 0 and parent.stride(0) == 0 else parent
        one_by_one: list[NodeGroup] = [slice(node, node + 1) for node in range(self.num_nodes)]
        self.deepest = self.num_nodes if deepest is None else min(deepest, self.num_nodes)
        self.widest = self.num_nodes
        self.num_parents = self.num_nodes
        self.groups_by_depth_and_rank = self.groups_by_rank = self.groups_by_place = one_by_one

    @classmethod
    def shared(cls, parents: Sequence[int], num_rows: int, device: torch.device) -> Self:
        """Tree with one structure for all rows, known to the host, so that all attributes are exact.

        Args:
            parents: parent of each node, level by level; -1 for a child of pending.
            num_rows: B.
            device: device of the tensors.

        Raises:
            ValueError: a parent does not come before its children.
        """
        if any(not -1 <= above < node for node, above in enumerate(parents)):
            raise ValueError(f"parents are {list(parents)}; a parent comes before its children, and -1 is pending")
        tree = cls(torch.tensor(parents, dtype=torch.int64, device=device).expand(num_rows, -1))
        depth: list[int] = []
        rank: list[int] = []
        place: list[int] = []  # among all nodes of its depth
        for node, above in enumerate(parents):
            rank.append(parents[:node].count(above))
            depth.append(1 if above < 0 else depth[above] + 1)
            place.append(depth[:node].count(depth[node]))
        tree.deepest, tree.widest = max(depth, default=0), max(place, default=-1) + 1
        tree.num_parents = max(parents, default=-2) + 2
        tree.groups_by_depth_and_rank = tree._grouped(list(zip(depth, rank, strict=True)))
        tree.groups_by_rank, tree.groups_by_place = tree._grouped(rank), tree._grouped(place)
        for name, derived in vars(Tree).items():
            if isinstance(derived, cached_property):
                getattr(tree, name)  # now, not within the first compiled round
        return tree

    def _grouped(self, keys: Sequence[Any]) -> list[NodeGroup]:
        """Nodes grouped by key, smallest key first."""
        return [self._index([node for node, other in enumerate(keys) if other == key]) for key in sorted(set(keys))]

    def _index(self, nodes: list[int]) -> NodeGroup:
        """Index of some nodes; a slice if they are evenly spaced, since slices index faster."""
        step = nodes[1] - nodes[0] if len(nodes) > 1 else 1
        if nodes == list(range(nodes[0], nodes[-1] + 1, step)):
            return slice(nodes[0], nodes[-1] + 1, step)
        return torch.tensor(nodes, device=self.parent.device)

    def _for_every_row(self, computed: Tensor) -> Tensor:
        return computed.expand(self.num_rows, *computed.shape[1:])

    @cached_property
    def _sees(self) -> Tensor:
        index = torch.arange(self.num_nodes + 1, device=self._parent.device)
        above = torch.cat(
            [self._parent.new_zeros(len(self._parent), 1), self._parent + 1], 1
        )  # pending is its own parent
        sees = (index == index.unsqueeze(1)) | (index == above.unsqueeze(2))
        for _ in range(self.deepest.bit_length()):  # squaring doubles the reach
            sees = (sees.float() @ sees.float()) > 0
        return sees

    @cached_property
    def sees(self) -> Tensor:
        """[B, N + 1, N + 1] bool: [b, i, j] is whether row j is row i itself or one of its ancestors."""
        return self._for_every_row(self._sees)

    @cached_property
    def _above(self) -> Tensor:
        return self._sees & ~torch.eye(self.num_nodes + 1, dtype=torch.bool, device=self._sees.device)

    @cached_property
    def below(self) -> Tensor:
        """[B, N + 1, N + 1] bool: [b, i, j] is whether row j is a descendant of row i."""
        return self._for_every_row(self._above.transpose(1, 2))

    @cached_property
    def depth(self) -> Tensor:
        """[B, N + 1] int64: depth of every row; 0 for pending."""
        return self._for_every_row(self._sees.sum(2) - 1)

    @cached_property
    def elder(self) -> Tensor:
        """[B, N, N] bool: [b, i, j] is whether node j is a sibling of node i and comes before it."""
        index = torch.arange(self.num_nodes, device=self._parent.device)
        siblings = self._parent.unsqueeze(2) == self._parent.unsqueeze(1)
        return self._for_every_row(siblings & (index < index.unsqueeze(1)))

    @cached_property
    def _is_child(self) -> Tensor:
        rows = torch.arange(-1, self.num_nodes, device=self._parent.device)
        return self._parent.unsqueeze(1) == rows.unsqueeze(1)

    def path(self, row: Tensor) -> Tensor:
        """Nodes on the path from a child of pending down to a row.

        Args:
            row: [B] int64 in 0..N.

        Returns:
            [B, deepest] int64: the nodes in order; beyond the path, entry k is k.
        """
        on_path = self.sees[torch.arange(self.num_rows, device=row.device), row][:, 1:]
        # Nodes off the path go to an extra last place, which is cut off.
        place = torch.where(on_path, self.depth[:, 1:] - 1, self.deepest)
        index = torch.arange(max(self.num_nodes, self.deepest + 1), device=row.device).expand(self.num_rows, -1)
        return index[:, : self.deepest + 1].scatter(1, place, index[:, : self.num_nodes])[:, :-1]

    def after(self, marked: Tensor) -> Tensor:
        """[B, N] bool: nodes with a proper ancestor among the marked nodes [B, N] bool."""
        return (self._above[:, 1:, 1:] & marked.unsqueeze(1)).any(2)

    def along(self, factor: Tensor) -> Tensor:
        """[B, N + 1]: product of factor [B, N] along the path to every row; 1 for pending."""
        factor = torch.cat([factor.new_ones(len(factor), 1), factor], 1)
        return torch.where(self._sees, factor.unsqueeze(1), 1.0).prod(2)

    def over_children(self, factor: Tensor) -> Tensor:
        """[B, N + 1]: product of factor [B, N] over the children of every row; 1 without children."""
        return torch.where(self._is_child, factor.unsqueeze(1), 1.0).prod(2)

    def over_elders(self, factor: Tensor) -> Tensor:
        """[B, N]: product of factor [B, N] over the elder siblings of every node; 1 without elder siblings."""
        return torch.where(self.elder, factor.unsqueeze(1), 1.0).prod(2)


class Chain(Tree):
    """Chain, where node i - 1 is the parent of node i: the derived tensors have closed forms."""

    is_chain = True

    def __init__(self, parent: Tensor):
        super().__init__(parent)
        self.widest = min(self.num_nodes, 1)
        self.groups_by_rank = self.groups_by_place = [slice(0, self.num_nodes)]

    @cached_property
    def _sees(self) -> Tensor:
        index = torch.arange(self.num_nodes + 1, device=self._parent.device)
        return (index <= index.unsqueeze(1)).unsqueeze(0)

    @cached_property
    def depth(self) -> Tensor:
        return torch.arange(self.num_nodes + 1, device=self._parent.device).expand(self.num_rows, -1)

    def path(self, row: Tensor) -> Tensor:
        return torch.arange(self.num_nodes, device=row.device).expand(self.num_rows, -1)

    def after(self, marked: Tensor) -> Tensor:
        return (marked.cumsum(1) - marked.long()) > 0
