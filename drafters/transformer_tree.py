"""Small language model that drafts a tree: several chains, or a tree grown level by level."""

from collections.abc import Callable
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling, draw, draw_several, largest
from framework.core.sequences import Sequences
from framework.core.tree import Chain, Tree
from framework.drafting.drafter_cache import DrafterCache
from framework.models.cached_lm import CachedLM
from framework.models.target import Target

SCHEMES = {
    "iid": SamplingScheme.IID,
    "without_replacement": SamplingScheme.WITHOUT_REPLACEMENT,
    "likeliest": SamplingScheme.ONE_HOT,
}


class TransformerTree:
    """Drafts a tree with the same number of children for all nodes of a level, in one pass of the model per level.

    Children are drawn independently (SpecInfer; Miao et al., 2024), drawn without replacement (Sequoia; Chen et al.,
    2024), or the most likely tokens. If only the root branches, the tree consists of several chains (SpecTr; Sun et
    al., 2023). At temperature 0 children are always the most likely tokens, since draws would repeat the same one.
    """

    def __init__(self, target: Target, *, model: Callable[[Target], CachedLM], branching: list[int], children: str):
        """
        Args:
            target: the target; the model must share its vocabulary and tokenizer.
            model: builds the small model for that target.
            branching: children per node, by depth from pending on; deeper nodes have one child.
            children: choice of siblings: iid, without_replacement or likeliest.

        Raises:
            ValueError: an option is out of range, the tokenizers differ, or the model is not supported.
        """
        if children not in SCHEMES:
            raise OptionError("children", children, f"{', '.join(SCHEMES)}")
        numbers = isinstance(branching, list) and all(type(number) is int and number >= 1 for number in branching)
        if not numbers or not branching:
            raise OptionError("branching", branching, "a list of whole numbers >= 1, such as [4, 2, 1]")
        if max(branching) > target.vocabulary_size:
            allowed = f"at most as many children as the vocabulary has tokens, {target.vocabulary_size}"
            raise OptionError("branching", branching, allowed)
        self.scheme = SCHEMES[children]
        self.branching = branching
        with options_under("model"):
            self.model = model(target)
        self._cache = DrafterCache(self.model)
        self.model.refuse_recurrent(
            "transformer_tree reads trees with drafter.model", "a model without them, or drafter=small_transformer"
        )
        self._trees: dict[tuple[int, int], Tree] = {}  # by gamma and rows
        if max(branching) == 1:
            self.shape = Shape.CHAIN
        else:
            self.shape = Shape.CHAINS if max(branching[1:], default=1) == 1 else Shape.TREE

    @property
    def depth(self) -> int:
        """Number of levels in `branching`."""
        return len(self.branching)

    @property
    def models(self) -> list[nn.Module]:
        return [self.model.model]

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

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        for gamma in range(1, max_gamma + 1):
            self._tree(gamma, num_rows)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._cache.begin_with(sequences)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        self._cache.begin_rows(rows, sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        partial_tree = _PartialTree(self._sampling, self.scheme, uniforms)
        tree, pending = self._tree(gamma, sequences.num_rows), sequences.lengths - 1
        logits = self._cache.catch_up(sequences).unsqueeze(1)
        for depth in range(gamma):
            first = partial_tree.num_nodes
            tokens = partial_tree.add(logits, self._children(depth))
            if depth < gamma - 1:
                visible = sequences.longest + partial_tree.num_nodes
                logits = self.model.forward(tokens, pending, visible=visible, tree=tree, first=1 + first).logits
        return partial_tree.draft(tree, self.shape)

    def _tree(self, gamma: int, num_rows: int) -> Tree:
        """The tree of a gamma and a number of rows, shared by all rounds with its cached properties."""
        if (gamma, num_rows) not in self._trees:
            kind = Chain if self.shape is Shape.CHAIN else Tree
            self._trees[gamma, num_rows] = kind.shared(self._parents(gamma), num_rows, self.model.device)
        return self._trees[gamma, num_rows]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._cache.keep_accepted(sequences, outcome)

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        self._cache.follow(outcome)

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        self._cache.resume(sequences, num_tokens)

    def rewind(self, sequences: Sequences) -> None:
        self._cache.rewind(sequences)


class _PartialTree:
    """The nodes drafted so far, and the distributions of their tokens."""

    def __init__(self, sampling: Sampling, scheme: SamplingScheme, uniforms: Tensor):
        self._sampling = sampling
        self._scheme = SamplingScheme.ONE_HOT if sampling.greedy else scheme
        self._uniforms = uniforms
        self._tokens: list[Tensor] = []
        self._distributions: list[Tensor] = []  # after each row of [pending, nodes...] that has children
        self._valid: list[Tensor] = []
        self.num_nodes = 0

    def add(self, logits: Tensor, num_children: int) -> Tensor:
        """Add children to each of L nodes from logits [B, L, V]; returns their tokens [B, L * num_children]."""
        num_rows, num_parents = logits.shape[:2]
        if self._scheme is SamplingScheme.ONE_HOT:
            tokens = largest(logits, num_children)
        else:
            number = num_parents * num_children
            uniforms = self._uniforms[:, self.num_nodes : self.num_nodes + number]
            self._distributions.append(self._sampling.probs(logits))
            tokens = self._draw(uniforms.reshape(num_rows, num_parents, num_children))
        self._tokens.append(tokens.flatten(1))
        self.num_nodes += num_parents * num_children
        return self._tokens[-1]

    def _draw(self, uniforms: Tensor) -> Tensor:
        """Tokens [B, L, K] from the latest distributions, with uniforms of the same shape."""
        probs, num_children = self._distributions[-1], uniforms.shape[2]
        if self._scheme is SamplingScheme.IID:
            return draw_several(probs, uniforms)
        drawn, left = [], probs.to(torch.float64, copy=True)
        # The mass of drawn tokens is set to zero instead of subtracted from cumulative sums: if the first token has
        # nearly all mass, the difference would be rounding error.
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
            self._scheme,
            probs=torch.cat(self._distributions, 1).index_select(1, tree.parent[0] + 1)
            if self._distributions
            else None,
            valid=torch.cat(self._valid, 1) if self._valid else None,
            shape=shape,
        )
