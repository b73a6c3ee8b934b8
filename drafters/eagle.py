"""EAGLE and EAGLE-3 drafter: a layer that reads the target's states, then its own predicted ones (Li et al., 2024)."""

import torch
from torch import Tensor

from framework.core.draft import Draft
from framework.core.drafter import ShouldContinue
from framework.core.sequences import Sequences
from framework.drafting.chain_builder import ChainBuilder
from framework.heads.eagle_states import DrafterOnStates
from framework.heads.published_eagle import read_eagle
from framework.models.target import Target


class Eagle(DrafterOnStates):
    """Draws a chain: an output layer scores each predicted state, and the drawn token feeds the next one."""

    stepwise = True

    def __init__(self, target: Target, *, path: str, layer_numbers: str | None):
        """
        Args:
            target: the target that the layer was trained for.
            path: folder or hub name of an EAGLE-1, 2 or 3 layer, published or written by `experiments.train`.
            layer_numbers: how an EAGLE-3 config numbers the target's layers, as for `read_eagle`.

        Raises:
            OSError: the files cannot be read.
            ValueError: a layer trained for another target.
        """
        self._layer = read_eagle(path, target, layer_numbers=layer_numbers)
        super().__init__(self._layer)

    @torch.no_grad()
    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        chain = ChainBuilder(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            should_continue=should_continue,
        )
        states, support = self._states.catch_up(sequences, gamma), self._layer.support
        support = None if support is None else support.expand(sequences.num_rows, -1)
        while chain.add(self._layer.scored(states), support):
            states = self._states.read_chain(sequences, states, chain.last, depth=chain.num_nodes)
        return chain.draft()
