"""A small language model drafts several continuations at once: independent chains, or a tree grown level by level."""

from collections.abc import Callable
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor

from framework.cached_lm import CachedLM
from framework.draft import Draft, Law, Outcome, Shape
from framework.sampling import Sampling, draw, draw_several, largest
from framework.sequences import Sequences
from framework.target import Target
from framework.tree import Chain, Tree

LAWS = {"iid": Law.IID, "without_replacement": Law.WITHOUT_REPLACEMENT, "likeliest": Law.ONE_HOT}


class TransformerTree:
    """Gives every node of a level the same number of children, one pass of the small model per level.

    Children are drawn independently (SpecInfer; Miao et al., 2024), drawn without replacement (Sequoia; Chen et al.,
    2024), or the likeliest ones. With children at the root alone these are several chains (SpecTr; Sun et al., 2023).
    At temperature 0 the likeliest ones are taken in any case: drawing would give the same token again and again.
    """

    def __init__(self, target: Target, *, model: Callable[[Target], CachedLM], branching: list[int], children: str):
        """
        Args:
            target: whose vocabulary and tokenizer the model must share.
            model: builds the small model for that target.
            branching: children of each node, by depth from pending on; deeper nodes have one child.
            children: how siblings are found: iid, without_replacement or likeliest.

        Raises:
            ValueError: a knob is out of its range, the tokenizers differ, or the model cannot be served.
        """
        if children not in LAWS:
            raise ValueError(f"drafter.children is {children!r}; allowed: {', '.join(LAWS)}")
        numbers = isinstance(branching, list) and all(type(number) is int and number >= 1 for number in branching)
        if not numbers or not branching:
            raise ValueError(f"drafter.branching is {branching!r}; allowed: a list of whole numbers >= 1, as [4, 2, 1]")
        if max(branching) > target.vocabulary_size:
            raise ValueError(
                f"drafter.branching is {branching!r}; allowed: at most as many children as the vocabulary has tokens, "
                f"{target.vocabulary_size}"
            )
        self.law = LAWS[children]
        self.branching = branching
        self.model = model(target)
        self._trees: dict[tuple[int, int], Tree] = {}  # by gamma and rows
        if max(branching) == 1:
            self.shape = Shape.CHAIN
        else:
            self.shape = Shape.CHAINS if max(branching[1:], default=1) == 1 else Shape.TREE

    @property
    def depth(self) -> int:
        """How deep the tree is that branching describes."""
        return len(self.branching)

    def num_uniforms(self, gamma: int) -> int:
        """One per node."""
        return self.num_nodes(gamma)

    def num_nodes(self, gamma: int) -> int:
        return sum(self._levels(gamma))

    def _levels(self, gamma: int) -> list[int]:
        """Nodes at depth 1, 2, ... gamma."""
        return list(accumulate((self._children(depth) for depth in range(gamma)), mul))

    def _children(self, depth: int) -> int:
        return self.branching[depth] if depth < len(self.branching) else 1

    def _parents(self, gamma: int) -> list[int]:
        """The parent of each node, breadth-first."""
        parents: list[int] = []
        above = [-1]
        for depth in range(gamma):
            level = [node for node in above for _ in range(self._children(depth))]
            above = list(range(len(parents), len(parents) + len(level)))
            parents += level
        return parents

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.model.begin_with(sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        growing = _Growing(self._sampling, self.law, uniforms)
        tree, pending = self._tree(gamma, sequences.num_rows), sequences.lengths - 1
        logits = self.model.catch_up(sequences).unsqueeze(1)
        for depth in range(gamma):
            first = growing.num_nodes
            tokens = growing.add(logits, self._children(depth))
            if depth < gamma - 1:
                visible = sequences.longest + growing.num_nodes
                logits = self.model.forward(tokens, pending, visible=visible, tree=tree, first=1 + first)
        return growing.draft(tree, self.shape)

    def _tree(self, gamma: int, num_rows: int) -> Tree:
        """Made once: all rounds of that many rows share it, and what was computed of it."""
        if (gamma, num_rows) not in self._trees:
            kind = Chain if self.shape is Shape.CHAIN else Tree
            self._trees[gamma, num_rows] = kind.shared(self._parents(gamma), num_rows, self.model.device)
        return self._trees[gamma, num_rows]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self.model.keep_accepted(sequences, outcome)

    def rewind(self, sequences: Sequences) -> None:
        self.model.rewind(sequences)


class _Growing:
    """The nodes so far, and the laws they were drawn from."""

    def __init__(self, sampling: Sampling, law: Law, uniforms: Tensor):
        self._sampling = sampling
        self._law = Law.ONE_HOT if sampling.greedy else law
        self._uniforms = uniforms
        self._tokens: list[Tensor] = []
        self._laws: list[Tensor] = []  # after each row of [pending, nodes...] that has children
        self._valid: list[Tensor] = []
        self.num_nodes = 0

    def add(self, logits: Tensor, num_children: int) -> Tensor:
        """Give each of L nodes children, after logits [B, L, V]; returns their tokens [B, L * num_children]."""
        num_rows, num_parents = logits.shape[:2]
        if self._law is Law.ONE_HOT:
            tokens = largest(logits, num_children)
        else:
            number = num_parents * num_children
            uniforms = self._uniforms[:, self.num_nodes : self.num_nodes + number]
            self._laws.append(self._sampling.probs(logits))
            tokens = self._draw(uniforms.reshape(num_rows, num_parents, num_children))
        self._tokens.append(tokens.flatten(1))
        self.num_nodes += num_parents * num_children
        return self._tokens[-1]

    def _draw(self, uniforms: Tensor) -> Tensor:
        """Tokens [B, L, K] from the latest laws with as many uniforms."""
        probs, num_children = self._laws[-1], uniforms.shape[2]
        if self._law is Law.IID:
            return draw_several(probs, uniforms)
        drawn, left = [], probs.to(torch.float64, copy=True)
        # Each is drawn from what is left as it stands: where the first has nearly all mass, taking it off the
        # cumulative sums would leave rounding errors.
        for each in uniforms.unbind(2):
            drawn.append(draw(left, each))
            left.scatter_(2, drawn[-1].unsqueeze(2), 0.0)
        valid = (probs > 0).sum(2, keepdim=True) > torch.arange(num_children, device=probs.device)
        if self._valid:
            valid = valid & self._valid[-1].unsqueeze(2)
        self._valid.append(valid.flatten(1))
        return torch.stack(drawn, 2)

    def draft(self, tree: Tree, shape: Shape) -> Draft:
        return Draft.of_tree(
            tree,
            torch.cat(self._tokens, 1),
            self._law,
            probs=torch.cat(self._laws, 1).index_select(1, tree.parent[0] + 1) if self._laws else None,
            valid=torch.cat(self._valid, 1) if self._valid else None,
            shape=shape,
        )
