"""EAGLE-2 drafter: EAGLE's layer grows a draft tree whose shape changes every round (Li et al., 2024)."""

import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.sequences import Sequences
from framework.core.validation import check_whole
from framework.drafting.tree_builder import TreeBuilder, num_grown
from framework.heads.eagle_states import DrafterOnStates
from framework.heads.published_eagle import read_eagle
from framework.models.target import Target


class EagleTree(DrafterOnStates):
    """Drafts the most probable nodes under EAGLE's layer, with one pass of the layer per level; nothing is sampled."""

    scheme = SamplingScheme.ONE_HOT
    shape = Shape.TREE

    def __init__(self, target: Target, *, path: str, layer_numbers: str | None, depth: int, children: int, nodes: int):
        """
        Args:
            target: the target that the layer was trained for.
            path: folder or hub name of an EAGLE-1, 2 or 3 layer, published or written by `experiments.train`.
            layer_numbers: how an EAGLE-3 config numbers the target's layers, as for `read_eagle`.
            depth: levels grown in every round, whatever gamma is; nodes deeper than gamma are not offered. A row's
                nodes therefore depend neither on gamma, which shrinks near the end, nor on the other rows.
            children: children per grown node, and grown nodes per level; capped at the draft vocabulary's size.
            nodes: drafted nodes, out of those of all levels; capped at their number.

        Raises:
            OSError: the files cannot be read.
            ValueError: an option out of range, or a layer trained for another target.
        """
        for key, value in (("depth", depth), ("children", children), ("nodes", nodes)):
            check_whole(key, value, least=1)
        self._layer = read_eagle(path, target, layer_numbers=layer_numbers)
        support = self._layer.support
        self.depth, self._children = depth, min(children, target.vocabulary_size if support is None else len(support))
        self._nodes = min(nodes, num_grown(depth, children=self._children, growing=self._children))
        super().__init__(self._layer, room=(depth - 1) * self._children)

    def num_uniforms(self, gamma: int) -> int:
        return 0

    def num_nodes(self, gamma: int) -> int:
        return self._nodes

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        tree = TreeBuilder(sequences.num_rows, device=sequences.tokens.device)
        support = self._layer.support
        states = self._states.catch_up(sequences, self.depth).unsqueeze(1)
        tree.add(self._layer.scored(states), self._children, support)
        while tree.depth < self.depth:
            tokens, above = tree.grow(self._children)
            states = states.gather(1, above.unsqueeze(2).expand(-1, -1, states.shape[2]))
            states = self._states.read_level(sequences, states, tokens, tree.sees, depth=tree.depth)
            tree.add(self._layer.scored(states), self._children, support)
        return tree.draft(self._nodes, deepest=gamma)
