"""Nodes that stand for the same tokens, taken together: chains that agree so far are one row with several children."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows


@dataclass(frozen=True)
class Pooled:
    """A draft re-hung: rows whose paths hold the same tokens are a class, and what hung on any hangs on its first.

    The children of a class are siblings then, and as independent as they were: given the path, nothing else was known
    when they were drawn. A class is reached at its first row alone, so that no token counts twice.
    """

    draft: Draft  # the same nodes, the parent of each the first row of a class; siblings keep their order
    first: Tensor  # [B, N + 1] int64: the first offered row of the class that each row of [pending, nodes...] is in

    @classmethod
    def not_at_all(cls, draft: Draft) -> "Pooled":
        """Every row a class of its own."""
        num_rows, num_nodes = draft.tokens.shape
        return cls(draft, torch.arange(num_nodes + 1, device=draft.tokens.device).expand(num_rows, -1))

    @classmethod
    def of(cls, draft: Draft) -> "Pooled":
        """Pools what is offered; on chains, and without replacement, no two nodes stand for the same tokens."""
        if draft.shape is Shape.CHAIN or draft.law is Law.WITHOUT_REPLACEMENT:
            return cls.not_at_all(draft)
        num_rows, num_nodes = draft.tokens.shape
        index = torch.arange(num_nodes + 1, device=draft.tokens.device)
        pending = draft.tokens.new_full((num_rows, 1), -1)  # is no token
        tokens = torch.cat([pending, draft.tokens], 1)
        above = torch.cat([torch.zeros_like(pending), draft.parent + 1], 1)  # pending stands above itself
        same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
        for _ in range(draft.tree.deepest.bit_length()):  # each time twice as far up
            same = same & _of_pairs(same, above)
            above = above.gather(1, above)
        offered = torch.cat([torch.ones_like(pending, dtype=torch.bool), draft.valid], 1)
        candidates = same & (offered.unsqueeze(1) | (index == index.unsqueeze(1)))
        first = torch.where(candidates, index, num_nodes).amin(2)
        return cls(replace(draft, parent=first.gather(1, draft.parent + 1) - 1, shape=Shape.TREE), first)

    @property
    def is_first(self) -> Tensor:
        """[B, N] bool: nodes at which their class is reached."""
        index = torch.arange(1, self.draft.num_nodes + 1, device=self.first.device)
        return self.draft.valid & (self.first[:, 1:] == index)

    def at_first(self, masses: Tensor) -> Tensor:
        """[B, N]: masses of offered nodes [B, N], summed up at the first of each class."""
        return torch.zeros_like(masses).scatter_add(1, self.first[:, 1:] - 1, masses.where(self.draft.valid, 0))

    def children(self, stop: Tensor) -> Tensor:
        """[B, N] bool: offered nodes whose parent is row stop[b]; stop [B] int64."""
        return self.draft.valid & (self.draft.parent == stop.unsqueeze(1) - 1)

    def prob_of_tokens(self, target: TargetRows) -> Tensor:
        """[B, N] p of each node's token after its parent, as it hangs now."""
        return target.prob_of(self.draft.tokens, self.draft.parent)

    def probs_of_children(self, stop: Tensor, width: int) -> Tensor:
        """[B, V] q of the offered children of row stop[b], all the same; any law of the draft where there are none."""
        return self.draft.probs_of_nodes(self.children(stop).int().argmax(1), width)


def pooled_of(target: TargetRows, draft: Draft) -> Pooled:
    """The draft pooled, for `TargetRows.once`."""
    return Pooled.of(draft)


def _of_pairs(same: Tensor, above: Tensor) -> Tensor:
    """[B, N + 1, N + 1]: what holds of the rows above two rows; above [B, N + 1] int64."""
    width = above.shape[1]
    rows = same.gather(1, above.unsqueeze(2).expand(-1, -1, width))
    return rows.gather(2, above.unsqueeze(1).expand(-1, width, -1))
