"""Drafts (Draft), the sampling schemes of their tokens (SamplingScheme), and the results of verification (Outcome).

B rows, N nodes, V vocabulary, S support, H hidden. `p` is the target's distribution and `q` the drafter's, both after
temperature, top-k, top-p and min-p.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.core.cached_property import cached_property
from framework.core.sampling import Sampling
from framework.core.tree import Chain, Tree

T = TypeVar("T")


class SamplingScheme(Enum):
    """Sampling scheme of node tokens; determines the q of the next sibling."""

    ONE_HOT = auto()  # chosen, not drawn: q is a point mass and is not materialised
    IID = auto()  # siblings drawn independently from the same q
    WITHOUT_REPLACEMENT = auto()  # each sibling drawn from q without the tokens of its elder siblings


class Shape(Enum):
    """Topology of a draft."""

    CHAIN = auto()  # node i's parent is node i - 1
    CHAINS = auto()  # several chains from the same root
    TREE = auto()


@dataclass(frozen=True)
class Draft:
    """Tokens proposed in one round, as a tree of nodes in breadth-first order; a chain has N = gamma nodes.

    Whether a node is `valid`, that is, offered to the verifier, may depend only on the tokens and distributions of its
    ancestors, or on anything if the scheme is ONE_HOT: stopping after a weak token is exact, dropping the weak token
    is biased. Under WITHOUT_REPLACEMENT the elder siblings of a valid node are valid, too: younger siblings are
    dropped first.
    """

    tokens: Tensor  # [B, N] int64
    parent: Tensor  # [B, N] int64; -1 is a child of pending
    valid: Tensor  # [B, N] bool, closed under parents and, WITHOUT_REPLACEMENT, under elder siblings
    scheme: SamplingScheme
    # [B, N, S] float32: q after each node's parent, the same for all siblings; None iff ONE_HOT
    probs: Tensor | None = None
    support: Tensor | None = None  # [B, N, S] int64: token ids of probs; None means S = V
    shape: Shape = Shape.CHAIN
    known_tree: Tree | None = None  # built from this very `parent` tensor, by the drafter or an earlier `tree`

    @classmethod
    def of_tree(
        cls,
        tree: Tree,
        tokens: Tensor,
        scheme: SamplingScheme,
        *,
        probs: Tensor | None = None,
        valid: Tensor | None = None,
        shape: Shape = Shape.TREE,
    ) -> "Draft":
        """Draft with the structure of a tree that is reused across rounds; valid None: all nodes."""
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        return cls(tokens, tree.parent, valid, scheme, probs, shape=shape, known_tree=tree)

    @classmethod
    def chain(
        cls,
        tokens: Tensor,
        scheme: SamplingScheme,
        *,
        probs: Tensor | None = None,
        support: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> "Draft":
        """Chain of N nodes per row; valid None: all nodes."""
        num_rows, num_nodes = tokens.shape
        parent = torch.arange(-1, num_nodes - 1, device=tokens.device).expand(num_rows, -1)
        if valid is None:
            valid = torch.ones_like(tokens, dtype=torch.bool)
        return cls(tokens=tokens, parent=parent, valid=valid, scheme=scheme, probs=probs, support=support)

    @classmethod
    def from_lists(cls, rows: list[list[int]], device: torch.device) -> "Draft":
        """Chain of tokens chosen on the host, with a different number per row; empty if no row has any."""
        deepest = max(map(len, rows))
        if not deepest:
            return cls.empty(len(rows), device)
        tokens = torch.tensor([row + [-1] * (deepest - len(row)) for row in rows], dtype=torch.int64, device=device)
        if min(map(len, rows)) == deepest:
            return cls.chain(tokens, SamplingScheme.ONE_HOT)
        return cls.chain(tokens.clamp(min=0), SamplingScheme.ONE_HOT, valid=tokens >= 0)

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "Draft":
        """Draft without nodes: the round is one plain target step."""
        return cls.chain(torch.empty(num_rows, 0, dtype=torch.int64, device=device), SamplingScheme.ONE_HOT)

    @property
    def num_nodes(self) -> int:
        return self.tokens.shape[1]

    @property
    def is_chosen(self) -> bool:
        """Whether no token was drawn, so that q is a point mass at every node."""
        return self.probs is None or not self.num_nodes

    @cached_property
    def tree(self) -> Tree:
        """Structure of the draft."""
        if self.known_tree is not None and self.known_tree.parent is self.parent:
            return self.known_tree
        return Chain(self.parent) if self.shape is Shape.CHAIN else Tree(self.parent)

    @property
    def offered_depth(self) -> Tensor:
        """[B] int64: depth of the deepest offered node."""
        if self.shape is Shape.CHAIN or not self.num_nodes:
            return self.valid.sum(1)
        return torch.where(self.valid, self.tree.depth[:, 1:], 0).amax(1)

    def rows(self, index: Tensor) -> "Draft":
        """The draft of some rows; index is [R] int64 or [B] bool."""
        return self._with_all(lambda tensor: tensor[index])

    def to(self, device: torch.device) -> "Draft":
        """The draft on another device."""
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
        """The draft with fewer nodes offered: `valid` [B, N] bool is intersected with the present one."""
        return replace(self, valid=self.valid & valid, known_tree=self.tree)

    def padded(self, num_nodes: int) -> "Draft":
        """The chain padded to num_nodes by nodes that are not valid.

        Raises:
            ValueError: the draft is not a chain.
        """
        if self.shape is not Shape.CHAIN:
            raise ValueError(f"a draft of shape {self.shape.name} cannot be padded; allowed: CHAIN")
        if num_nodes == self.num_nodes:
            return self
        more = (0, num_nodes - self.num_nodes)
        return Draft.chain(
            pad(self.tokens, more),
            self.scheme,
            probs=None if self.probs is None else pad(self.probs, (0, 0, *more)),
            support=None if self.support is None else pad(self.support, (0, 0, *more)),
            valid=pad(self.valid, more),
        )

    def prob_of_tokens(self) -> Tensor:
        """[B, N]: q of each node's own token; ones for ONE_HOT."""
        if self.probs is None:
            return torch.ones(self.tokens.shape, device=self.tokens.device)
        if self.support is None:
            return self.probs.gather(2, self.tokens.unsqueeze(2)).squeeze(2)
        return torch.where(self.support == self.tokens.unsqueeze(2), self.probs, 0.0).sum(2)

    def probs_of_nodes(self, nodes: Tensor, width: int) -> Tensor:
        """[B, ..., V]: q of some nodes of each row; nodes [B, ...] int64, and width is V."""
        rows = torch.arange(len(nodes), device=nodes.device).view(-1, *[1] * (nodes.dim() - 1))
        if self.probs is None:
            ids = self.tokens[rows, nodes].unsqueeze(-1)
            return _in_full(ids, torch.ones(ids.shape, device=ids.device), width)
        probs = self.probs[rows, nodes]
        return probs if self.support is None else _in_full(self.support[rows, nodes], probs, width)

    def dense_probs(self, width: int) -> Tensor:
        """[B, N, V]: q of every node over the whole vocabulary; width is V."""
        if self.probs is None:
            return _in_full(self.tokens.unsqueeze(2), self.prob_of_tokens().unsqueeze(2), width)
        return self.probs if self.support is None else _in_full(self.support, self.probs, width)


def _in_full(ids: Tensor, masses: Tensor, width: int) -> Tensor:
    """[..., V]: distributions from token ids [..., S] and their masses."""
    return masses.new_zeros(*ids.shape[:-1], width).scatter_add(-1, ids, masses)


@dataclass(frozen=True)
class DraftedNode:
    """The last drafted node of every row: the input of the decision whether drafting continues.

    Attributes:
        probs: [B, S] float32: the distribution that its token was drawn from. For a token chosen at temperature 0,
            where that distribution is one-hot, the distribution at temperature 1.
        entry: [B] int64: index of its token among the S entries.
        depth: 1 for a child of pending.
        hidden: [B, H]: input of the drafter's output layer that gave the distribution; None: the drafter shows none.
    """

    probs: Tensor
    entry: Tensor
    depth: int
    hidden: Tensor | None = None

    @property
    def confidence(self) -> Tensor:
        """[B] float32: the drafter's probability of the token."""
        return self.probs.gather(1, self.entry.unsqueeze(1)).squeeze(1)

    @property
    def entropy(self) -> Tensor:
        """[B] float32: entropy of the distribution in nats."""
        return torch.special.entr(self.probs).sum(1)


class TargetRows:
    """Target logits of one round, one row for pending and one per node; probabilities are computed on demand.

    Row 0 scores the token after pending; row 1 + i scores the token after node i.
    """

    def __init__(self, logits: Tensor, draft: Draft, sampling: Sampling):
        """
        Args:
            logits: [B, N + 1, V] before temperature.
            draft: the nodes of these rows.
            sampling: defines p.
        """
        self.logits = logits
        self.draft = draft
        self.sampling = sampling
        self._cache: dict[Callable[[TargetRows, Draft], object], tuple[Draft, object]] = {}

    @cached_property
    def all_probs(self) -> Tensor:
        """[B, N + 1, V]: p after pending and after every node."""
        return self.sampling.probs(self.logits)

    @property
    def _in_full(self) -> bool:
        """Whether `all_probs` has been computed.

        Other probabilities are then read from it, so that all agree bitwise.
        """
        return "all_probs" in self.__dict__

    def probs(self, rows: Tensor) -> Tensor:
        """[B, V]: p of one row per sequence; rows [B] int64."""
        index = (torch.arange(len(rows), device=rows.device), rows)
        if self._in_full:
            return self.all_probs[index]
        return self.sampling.probs(self.logits[index])

    def prob_of(self, tokens: Tensor, parent: Tensor | None = None) -> Tensor:
        """[B, N]: p of each token after its node's parent, or after another parent.

        Args:
            tokens: [B, N] int64.
            parent: [B, N] int64; None: the draft's.
        """
        # Parent -1 is pending, which is row 0.
        rows = (self.draft.parent if parent is None else parent) + 1
        if self._in_full:
            return self.all_probs[torch.arange(len(tokens), device=tokens.device).unsqueeze(1), rows, tokens]
        return self.sampling.prob_of(self.logits, rows, tokens)

    def cached(self, compute: Callable[["TargetRows", Draft], T], draft: Draft) -> T:
        """compute(self, draft), cached for the round: the distributions of a rule share intermediate results."""
        known = self._cache.get(compute)
        if known is None or known[0] is not draft:
            known = self._cache[compute] = (draft, compute(self, draft))
        return cast(T, known[1])


@dataclass(frozen=True)
class Outcome:
    """Result of verifying a draft. Its tensors are valid until `observe` returns, and may be reused afterwards.

    The optional fields are None without a target pass in this process: a drafter timed alone gets no target
    probabilities, and a drafter in another process gets no target tensors at all.
    """

    draft: Draft
    stop: Tensor  # [B] int64: row of [pending, nodes...] where acceptance stopped
    num_accepted: Tensor  # [B] int64: nodes on the accepted path, which is the depth of stop
    next_token: Tensor  # [B] int64: the token emitted after stop
    # [B] int64: accepted and emitted tokens kept; 0 for finished rows. The host removes tokens after a stop string.
    num_committed: Tensor
    active: Tensor  # [B] bool: rows that were decoding when the round began
    stop_probs: Tensor | None = None  # [B, N + 1]: probability that acceptance ended at each row
    target: TargetRows | None = None
    hidden: Tensor | None = None  # [B, N + 1, H]: input of the target's output layer after pending and every node
    # [B, M, H]: the same for all tokens of the pass; at prefill, those of the prompts, left-aligned, where entries
    # after a prompt's end are meaningless.
    states: Tensor | None = None
    # [B, M, n * H]: states of the n `hidden_layers` that the drafter declares, in order, for the tokens of `states`
    features: Tensor | None = None

    @property
    def rejected(self) -> Tensor:
        """[B] bool: whether a child of the stop row was offered, and thus rejected."""
        if not self.draft.num_nodes:
            return torch.zeros_like(self.stop, dtype=torch.bool)
        after_stop = self.draft.parent == self.stop.unsqueeze(1) - 1
        return (self.draft.valid & after_stop).any(1)

    @property
    def followed(self) -> Tensor:
        """[B, deepest + 1] int64: row of [pending, nodes...] before each committed token; other entries: arbitrary."""
        path = self.draft.tree.path(self.stop)
        return torch.cat([torch.zeros_like(self.stop).unsqueeze(1), path + 1], 1)

    @property
    def state_at_pending(self) -> Tensor:
        """[B, H]: the states from which the target's output layer scored the pending tokens."""
        assert self.hidden is not None, "the drafter needs Outcome.hidden"
        return self.hidden[torch.arange(len(self.hidden), device=self.hidden.device), self.stop]


class Readout(NamedTuple):
    """Host-side record of a committed round, for tallies and gamma policies. Lists have one entry per row.

    Attributes:
        num_nodes: nodes of the draft; 0: nothing was proposed.
        active: 1 for rows that were decoding when the round began, else 0.
        offered: depth of the deepest offered node.
        accepted: depth of the deepest accepted node.
        rejected: 1 if a child of that node was offered, and thus rejected; else 0.
        committed: tokens kept after all stopping criteria.
        max_depth: largest depth that the row's token budget allowed; deeper nodes were not offered.
    """

    num_nodes: int
    active: list[int]
    offered: list[int]
    accepted: list[int]
    rejected: list[int]
    committed: list[int]
    max_depth: list[int]

    def of_row(self, row: int) -> "Readout":
        """The record of one row alone."""
        num_nodes, *lists = self
        return Readout(num_nodes, *(each[row : row + 1] for each in lists))
