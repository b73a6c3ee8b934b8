"""What was proposed (Draft), how its tokens were drawn (Law), and what became of it (Outcome).

B rows, N nodes, V vocabulary, S support, H hidden. `p` is the target's law and `q` the drafter's, both after
temperature, top-k, top-p and min-p.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.computed_once import computed_once
from framework.sampling import Sampling
from framework.tree import Chain, Tree

T = TypeVar("T")


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
    # [B, N, S] float32: q after each node's parent, the same for all its siblings; None iff ONE_HOT
    probs: Tensor | None = None
    support: Tensor | None = None  # [B, N, S] int64: token ids of probs; None means S = V
    shape: Shape = Shape.CHAIN
    known_tree: Tree | None = None  # made of this very `parent`, by a drafter that keeps it or by an earlier `tree`

    @classmethod
    def of_tree(
        cls,
        tree: Tree,
        tokens: Tensor,
        law: Law,
        *,
        probs: Tensor | None = None,
        valid: Tensor | None = None,
        shape: Shape = Shape.TREE,
    ) -> "Draft":
        """Nodes that hang together like a tree that is kept from round to round; all valid unless said otherwise."""
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        return cls(tokens, tree.parent, valid, law, probs, shape=shape, known_tree=tree)

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
    def copied(cls, rows: list[list[int]], device: torch.device) -> "Draft":
        """A chain of tokens that the host chose, as many in every row as there are; empty if no row has any."""
        deepest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (deepest - len(row)) for row in rows], dtype=torch.int64)
        valid = torch.arange(deepest) < torch.tensor([[len(row)] for row in rows])
        return cls.chain(tokens.view(len(rows), deepest), Law.ONE_HOT, valid=valid).to(device)

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "Draft":
        """A draft that proposes nothing: the round is one plain target step."""
        return cls.chain(torch.empty(num_rows, 0, dtype=torch.int64, device=device), Law.ONE_HOT)

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def is_chosen(self) -> bool:
        """Whether no token was drawn, so that q is a point mass wherever there is a node."""
        return self.probs is None or not self.num_nodes

    @computed_once
    def tree(self) -> Tree:
        """How the nodes hang together."""
        if self.known_tree is not None and self.known_tree.parent is self.parent:
            return self.known_tree
        return Chain(self.parent) if self.shape is Shape.CHAIN else Tree(self.parent)

    @property
    def offered_depth(self) -> Tensor:
        """[B] int64: depth of the deepest node offered."""
        if self.shape is Shape.CHAIN or not self.num_nodes:
            return self.valid.sum(1)
        return torch.where(self.valid, self.tree.depth[:, 1:], 0).amax(1)

    def rows(self, index: Tensor) -> "Draft":
        """The same draft of some rows; index is [R] int64 or [B] bool."""
        return self._with_all(lambda tensor: tensor[index])

    def to(self, device: torch.device) -> "Draft":
        """The same draft on another device."""
        return self._with_all(lambda tensor: tensor.to(device))

    def _with_all(self, change: Callable[[Tensor], Tensor]) -> "Draft":
        return replace(
            self,
            tokens=change(self.tokens),
            parent=change(self.parent),
            valid=change(self.valid),
            probs=None if self.probs is None else change(self.probs),
            support=None if self.support is None else change(self.support),
        )

    def offered(self, valid: Tensor) -> "Draft":
        """The same draft with fewer nodes offered; valid [B, N] bool is intersected with what was valid."""
        return replace(self, valid=self.valid & valid, known_tree=self.tree)

    def padded(self, num_nodes: int) -> "Draft":
        """The same chain with nodes behind it that are not valid, num_nodes in all.

        Raises:
            ValueError: it is no chain.
        """
        if self.shape is not Shape.CHAIN:
            raise ValueError(f"a draft of shape {self.shape.name} cannot be filled up; allowed: CHAIN")
        more = (0, num_nodes - self.num_nodes)
        return Draft.chain(
            pad(self.tokens, more),
            self.law,
            probs=None if self.probs is None else pad(self.probs, (0, 0, *more)),
            support=None if self.support is None else pad(self.support, (0, 0, *more)),
            valid=pad(self.valid, more),
        )

    def prob_of_tokens(self) -> Tensor:
        """[B, N] q of each node's own token; ones for ONE_HOT."""
        if self.probs is None:
            return torch.ones(self.tokens.shape, device=self.tokens.device)
        if self.support is None:
            return self.probs.gather(2, self.tokens.unsqueeze(2)).squeeze(2)
        return torch.where(self.support == self.tokens.unsqueeze(2), self.probs, 0.0).sum(2)

    def probs_of_nodes(self, nodes: Tensor, width: int) -> Tensor:
        """[B, ..., V] q of some nodes of each row; nodes [B, ...] int64."""
        rows = torch.arange(len(nodes), device=nodes.device).view(-1, *[1] * (nodes.dim() - 1))
        if self.probs is None:
            ids = self.tokens[rows, nodes].unsqueeze(-1)
            return _in_full(ids, torch.ones(ids.shape, device=ids.device), width)
        probs = self.probs[rows, nodes]
        return probs if self.support is None else _in_full(self.support[rows, nodes], probs, width)

    def dense_probs(self, width: int) -> Tensor:
        """[B, N, V] q in full."""
        if self.probs is None:
            return _in_full(self.tokens.unsqueeze(2), self.prob_of_tokens().unsqueeze(2), width)
        return self.probs if self.support is None else _in_full(self.support, self.probs, width)


def _in_full(ids: Tensor, masses: Tensor, width: int) -> Tensor:
    """[..., V] laws from token ids [..., S] and their masses."""
    return masses.new_zeros(*ids.shape[:-1], width).scatter_add(-1, ids, masses)


@dataclass(frozen=True)
class DraftedNode:
    """What is known of the node that every row drafted last, when it is asked whether the draft goes on behind it.

    Attributes:
        law: [B, S] float32: what its token was drawn from; of one that was chosen at temperature 0, where every choice
            would be certain, the law at temperature 1.
        entry: [B] int64: which of the S entries its token is.
        depth: 1 for a child of pending.
    """

    law: Tensor
    entry: Tensor
    depth: int

    @property
    def confidence(self) -> Tensor:
        """[B] float32: the probability that the drafter itself gave to the token."""
        return self.law.gather(1, self.entry.unsqueeze(1)).squeeze(1)

    @property
    def entropy(self) -> Tensor:
        """[B] float32: nats of the law."""
        return torch.special.entr(self.law).sum(1)


class TargetRows:
    """The target's logits of one round, one row for pending and one per node, standardised only where asked.

    Row 0 is what follows pending; row 1 + i is what follows node i.
    """

    def __init__(
        self,
        logits: Tensor,
        draft: Draft,
        sampling: Sampling,
        hidden: Tensor | None = None,
        states: Tensor | None = None,
    ):
        """
        Args:
            logits: [B, N + 1, V] before temperature.
            draft: the nodes these rows belong to.
            sampling: defines p.
            hidden: [B, N + 1, H] what the target's output layer made the logits from; for drafters that build on it.
            states: [B, M, H] the same of all tokens that the pass read; at prefill these are the prompts', from the
                left on, and what lies behind a prompt's end means nothing.
        """
        self.logits = logits
        self.hidden = hidden
        self.states = states
        self.draft = draft
        self.sampling = sampling
        self._computed: dict[Callable[[TargetRows, Draft], object], tuple[Draft, object]] = {}

    @computed_once
    def all_probs(self) -> Tensor:
        """[B, N + 1, V] p after pending and after every node."""
        return self.sampling.probs(self.logits)

    @property
    def _in_full(self) -> bool:
        """Whether a rule has asked for all laws: then what else it asks for agrees with them to the last bit."""
        return "all_probs" in self.__dict__

    def probs(self, rows: Tensor) -> Tensor:
        """[B, V] p of one row per sequence; rows [B] int64."""
        index = (torch.arange(len(rows), device=rows.device), rows)
        if self._in_full:
            return self.all_probs[index]
        return self.sampling.probs(self.logits[index])

    def prob_of(self, tokens: Tensor, parent: Tensor | None = None) -> Tensor:
        """[B, N] p of each node's token given its parent, or given another one.

        Args:
            tokens: [B, N] int64.
            parent: [B, N] int64; None is the draft's.
        """
        # A parent of -1 is pending, which is row 0: rows count from there.
        rows = (self.draft.parent if parent is None else parent) + 1
        if self._in_full:
            return self.all_probs[torch.arange(len(tokens), device=tokens.device).unsqueeze(1), rows, tokens]
        return self.sampling.prob_of(self.logits, rows, tokens)

    def once(self, compute: Callable[["TargetRows", Draft], T], draft: Draft) -> T:
        """compute(self, draft) for the first who asks, and the same for who asks again: a rule's laws share much."""
        known = self._computed.get(compute)
        if known is None or known[0] is not draft:
            known = self._computed[compute] = (draft, compute(self, draft))
        return cast(T, known[1])


@dataclass(frozen=True)
class Outcome:
    """What became of a draft. Lent to observers until `observe` returns: its tensors may be reused afterwards."""

    draft: Draft
    stop_law: Tensor  # [B, N + 1] probability that acceptance ended at each row
    stop: Tensor  # [B] int64 row of [pending, nodes...] where it did
    num_accepted: Tensor  # [B] int64: nodes on the accepted path, which is the depth of stop
    next_token: Tensor  # [B] int64: the token emitted after it
    # [B] int64: accepted and emitted tokens kept; 0 for finished rows. The host takes back those behind a stop string.
    num_committed: Tensor
    active: Tensor  # [B] bool: rows that were decoding when the round began
    target: TargetRows

    @property
    def lost(self) -> Tensor:
        """[B] bool: whether a node was offered behind the row where acceptance stopped; it was not kept."""
        behind_stop = self.draft.parent == self.stop.unsqueeze(1) - 1
        return (self.draft.valid & behind_stop).any(1)

    @property
    def followed(self) -> Tensor:
        """[B, deepest + 1] int64: the row of [pending, nodes...] that each committed token follows; then anything."""
        path = self.draft.tree.path(self.stop)
        return torch.cat([torch.zeros_like(self.stop).unsqueeze(1), path + 1], 1)


@dataclass(frozen=True)
class Readout:
    """What the host reads of a round after its commit, for whoever counts or decides there. An entry for every row.

    Attributes:
        num_nodes: of the draft; 0 where nothing was proposed.
        active: 1 for rows that were decoding when the round began, else 0.
        offered: depth of the deepest node offered.
        accepted: depth of the deepest node accepted.
        lost: 1 where a node was offered behind that one, and not kept.
        committed: tokens kept, after everything that ends a row.
        room: how deep the row's budget let a draft be; what was drafted deeper was not offered.
    """

    num_nodes: int
    active: list[int]
    offered: list[int]
    accepted: list[int]
    lost: list[int]
    committed: list[int]
    room: list[int]
