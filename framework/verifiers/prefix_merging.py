"""Merging of equal prefixes: chains that agree so far become one row with several children."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows


@dataclass(frozen=True)
class MergedPrefixes:
    """A draft with merged prefixes: rows whose paths hold the same tokens form a class that shares its children.

    All children of a class become siblings, children of its first row. They remain independent, since each was drawn
    given its path alone. A class is reached only at its first row, so no token counts twice.
    """

    draft: Draft  # the same nodes, each with the first row of a class as parent; siblings keep their order
    first: Tensor  # [B, N + 1] int64: the first offered row in the class of each row of [pending, nodes...]

    @classmethod
    def not_at_all(cls, draft: Draft) -> "MergedPrefixes":
        """The draft unmerged: every row is a class of its own."""
        num_rows, num_nodes = draft.tokens.shape
        return cls(draft, torch.arange(num_nodes + 1, device=draft.tokens.device).expand(num_rows, -1))

    @classmethod
    def of(cls, draft: Draft) -> "MergedPrefixes":
        """Merge the offered nodes; chains and drafts WITHOUT_REPLACEMENT have no equal prefixes."""
        if draft.shape is Shape.CHAIN or draft.scheme is SamplingScheme.WITHOUT_REPLACEMENT:
            return cls.not_at_all(draft)
        num_rows, num_nodes = draft.tokens.shape
        index = torch.arange(num_nodes + 1, device=draft.tokens.device)
        pending = draft.tokens.new_full((num_rows, 1), -1)  # not a token id
        tokens = torch.cat([pending, draft.tokens], 1)
        above = torch.cat([torch.zeros_like(pending), draft.parent + 1], 1)  # pending is its own parent
        same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
        for _ in range(draft.tree.deepest.bit_length()):  # each iteration compares twice as many levels
            same = same & _of_pairs(same, above)
            above = above.gather(1, above)
        offered = torch.cat([torch.ones_like(pending, dtype=torch.bool), draft.valid], 1)
        candidates = same & (offered.unsqueeze(1) | (index == index.unsqueeze(1)))
        first = torch.where(candidates, index, num_nodes).amin(2)
        return cls(replace(draft, parent=first.gather(1, draft.parent + 1) - 1, shape=Shape.TREE), first)

    @property
    def is_first(self) -> Tensor:
        """[B, N] bool: offered nodes that are the first of their class."""
        index = torch.arange(1, self.draft.num_nodes + 1, device=self.first.device)
        return self.draft.valid & (self.first[:, 1:] == index)

    def at_first(self, masses: Tensor) -> Tensor:
        """[B, N]: masses [B, N] of the offered nodes, summed at the first node of each class."""
        return torch.zeros_like(masses).scatter_add(1, self.first[:, 1:] - 1, masses.where(self.draft.valid, 0))

    def children(self, stop: Tensor) -> Tensor:
        """[B, N] bool: offered nodes whose parent is row stop[b]; stop [B] int64."""
        return self.draft.valid & (self.draft.parent == stop.unsqueeze(1) - 1)

    def prob_of_tokens(self, target: TargetRows) -> Tensor:
        """[B, N] p of each node's token after its merged parent."""
        return target.prob_of(self.draft.tokens, self.draft.parent)

    def probs_of_children(self, stop: Tensor, width: int) -> Tensor:
        """[B, V] q shared by the offered children of row stop[b]; an arbitrary q of the draft if there are none."""
        return self.draft.probs_of_nodes(self.children(stop).int().argmax(1), width)


def merged_of(target: TargetRows, draft: Draft) -> MergedPrefixes:
    """The merged draft, with the signature that `TargetRows.cached` expects."""
    return MergedPrefixes.of(draft)


def _of_pairs(same: Tensor, above: Tensor) -> Tensor:
    """[B, N + 1, N + 1]: `same` of the parents of two rows; above [B, N + 1] int64 holds the parents."""
    width = above.shape[1]
    rows = same.gather(1, above.unsqueeze(2).expand(-1, -1, width))
    return rows.gather(2, above.unsqueeze(1).expand(-1, width, -1))
