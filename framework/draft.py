"""What was proposed (Draft), how its tokens were drawn (Law), and what became of it (Outcome).

B rows, N nodes, V vocabulary, S support, H hidden. `p` is the target's law and `q` the drafter's, both after
temperature, top-k, top-p and min-p.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

import torch
from torch import Tensor

from framework.sampling import Sampling


class Law(Enum):
    """How node tokens were drawn; decides the q of the next sibling."""

    ONE_HOT = auto()  # chosen, not drawn: q is a point mass and is not materialised
    IID = auto()  # siblings drawn independently from the same q
    WITHOUT_REPLACEMENT = auto()  # siblings drawn from q without what was drawn before


class Shape(Enum):
    """How nodes hang together."""

    CHAIN = auto()  # node i's parent is node i - 1
    CHAINS = auto()  # several chains from the same root
    TREE = auto()


@dataclass(frozen=True)
class Draft:
    """The tokens one round proposes, as a tree of nodes in breadth-first order; a chain is N = gamma nodes.

    Which nodes are `valid` may depend on the tokens and laws of a node's ancestors only, or on anything when the
    law is ONE_HOT: stopping after a weak token is exact, dropping the weak token is biased.
    """

    tokens: Tensor  # [B, N] int64
    parent: Tensor  # [B, N] int64; -1 is a child of pending
    valid: Tensor  # [B, N] bool, closed under parents
    law: Law
    probs: Tensor | None = None  # [B, N, S] float32: q of each node given its parent; None iff ONE_HOT
    support: Tensor | None = None  # [B, N, S] int64: token ids of probs; None means S = V

    @classmethod
    def chain(
        cls,
        tokens: Tensor,
        law: Law,
        *,
        probs: Tensor | None = None,
        support: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> "Draft":
        """A chain of N nodes per row; all valid unless said otherwise."""
        num_rows, num_nodes = tokens.shape
        parent = torch.arange(-1, num_nodes - 1, device=tokens.device).expand(num_rows, -1)
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        return cls(tokens=tokens, parent=parent, valid=valid, law=law, probs=probs, support=support)

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "Draft":
        """A draft that proposes nothing: the round is one plain target step."""
        return cls.chain(torch.empty(num_rows, 0, dtype=torch.int64, device=device), Law.ONE_HOT)

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def num_valid(self) -> Tensor:
        """[B] int64: nodes offered; on a chain, the row after the last valid node."""
        return self.valid.sum(1)

    def rows(self, index: Tensor) -> "Draft":
        """The same draft of some rows; index is [R] int64 or [B] bool."""
        return replace(
            self,
            tokens=self.tokens[index],
            parent=self.parent[index],
            valid=self.valid[index],
            probs=None if self.probs is None else self.probs[index],
            support=None if self.support is None else self.support[index],
        )

    def offered(self, valid: Tensor) -> "Draft":
        """The same draft with fewer nodes offered; valid [B, N] bool is intersected with what was valid."""
        return replace(self, valid=self.valid & valid)

    def prob_of_tokens(self) -> Tensor:
        """[B, N] q of each node's own token; ones for ONE_HOT."""
        if self.probs is None:
            return torch.ones(self.tokens.shape, device=self.tokens.device)
        if self.support is None:
            return self.probs.gather(2, self.tokens.unsqueeze(2)).squeeze(2)
        return torch.where(self.support == self.tokens.unsqueeze(2), self.probs, 0.0).sum(2)

    def dense_probs(self, width: int) -> Tensor:
        """[B, N, V] q in full, for statistics; the loop never calls it."""
        if self.probs is not None and self.support is None:
            return self.probs
        if self.probs is None or self.support is None:
            ids, masses = self.tokens.unsqueeze(2), self.prob_of_tokens().unsqueeze(2)
        else:
            ids, masses = self.support, self.probs
        return masses.new_zeros(*self.tokens.shape, width).scatter_add_(2, ids, masses)


class TargetRows:
    """The target's logits of one round, one row for pending and one per node, standardised only where asked.

    Row 0 is what follows pending; row 1 + i is what follows node i.
    """

    def __init__(self, logits: Tensor, draft: Draft, sampling: Sampling):
        """
        Args:
            logits: [B, N + 1, V] before temperature.
            draft: the nodes these rows belong to.
            sampling: defines p.
        """
        self.logits = logits
        self.draft = draft
        self.sampling = sampling

    @cached_property
    def all_probs(self) -> Tensor:
        """[B, N + 1, V] p after pending and after every node."""
        return self.sampling.probs(self.logits)

    def probs(self, rows: Tensor) -> Tensor:
        """[B, V] p of one row per sequence; rows [B] int64."""
        return self.all_probs[torch.arange(len(rows), device=rows.device), rows]

    def prob_of(self, tokens: Tensor) -> Tensor:
        """[B, N] p of each node's token given its parent; tokens [B, N] int64."""
        # A parent of -1 is pending, which is row 0: rows count from there.
        parent_rows = self.all_probs.gather(
            1, (self.draft.parent + 1).unsqueeze(2).expand(-1, -1, self.logits.shape[2])
        )
        return parent_rows.gather(2, tokens.unsqueeze(2)).squeeze(2)


@dataclass(frozen=True)
class Outcome:
    """What became of a draft. Lent to observers until `observe` returns: its tensors may be reused afterwards."""

    draft: Draft
    stop_law: Tensor  # [B, N + 1] probability that acceptance ended at each row
    stop: Tensor  # [B] int64 row of [pending, nodes...] where it did
    num_accepted: Tensor  # [B] int64: nodes on the accepted path
    next_token: Tensor  # [B] int64: the token emitted after it
    num_committed: Tensor  # [B] int64: accepted and emitted tokens kept; 0 for finished rows
    active: Tensor  # [B] bool: rows that were decoding when the round began
    target: TargetRows
