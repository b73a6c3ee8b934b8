"""EAGLE's layer grows a tree, which takes another form in every round (EAGLE-2; Li et al., 2024)."""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.eagle_layer import load_eagle
from framework.eagle_states import EagleStates
from framework.growing_tree import GrowingTree
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target
from framework.whole_numbers import check_whole


class EagleTree:
    """Chooses the nodes that the layer finds likeliest, one pass of it per level; nothing is drawn."""

    law = Law.ONE_HOT
    shape = Shape.TREE

    def __init__(self, target: Target, *, path: str, depth: int, children: int, nodes: int):
        """
        Args:
            target: whom the layer was trained for.
            path: folder of the layer, as `experiments.train` writes it.
            depth: levels that are grown, whatever gamma is; what lies deeper than gamma is not offered. So a row near
                its end has the nodes it would have had, and does not see who else is in its batch.
            children: of each node that grows, and how many nodes of a level do; no more than there are tokens.
            nodes: how many of them all are drafted.

        Raises:
            OSError: no layer there.
            ValueError: a knob out of its range, or a layer for another target.
        """
        for key, value in (("depth", depth), ("children", children), ("nodes", nodes)):
            check_whole(f"drafter.{key}", value, least=1)
        self._states = EagleStates(load_eagle(path, target))
        self.depth, self._children = depth, min(children, target.vocabulary_size)
        self._nodes = min(nodes, self._children + (depth - 1) * self._children**2)

    def num_uniforms(self, gamma: int) -> int:
        return 0

    def num_nodes(self, gamma: int) -> int:
        return self._nodes

    @torch.no_grad()
    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._states.begin(sequences, prefill, room=(self.depth - 1) * self._children)

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        tree = GrowingTree(sequences.num_rows, device=sequences.tokens.device)
        states = self._states.catch_up(sequences, self.depth).unsqueeze(1)
        tree.add(self._states.layer.scored(states), self._children)
        while tree.depth < self.depth:
            tokens, above = tree.grow(self._children)
            states = states.gather(1, above.unsqueeze(2).expand(-1, -1, states.shape[2]))
            states = self._states.read_level(sequences, states, tokens, tree.sees, depth=tree.depth)
            tree.add(self._states.layer.scored(states), self._children)
        return tree.draft(self._nodes, deepest=gamma)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._states.observe(sequences, outcome)
