"""P-EAGLE drafter: EAGLE-3's layer predicts all drafted tokens in one pass, from masks (Hui et al., 2026)."""

import torch
from torch import Tensor

from framework.core.draft import Draft
from framework.core.drafter import ShouldContinue
from framework.core.sequences import Sequences
from framework.drafting.chain_builder import ChainBuilder
from framework.heads.eagle_states import DrafterOnStates
from framework.heads.published_eagle import read_peagle
from framework.models.target import Target


class Peagle(DrafterOnStates):
    """Draws a chain whose distributions do not depend on its tokens; the pass that reads new tokens predicts all."""

    stepwise = True

    def __init__(self, target: Target, *, path: str, layer_numbers: str | None):
        """
        Args:
            target: the target that the layer was trained for.
            path: folder or hub name of a published drafter.
            layer_numbers: how its config numbers the target's layers, as for `read_eagle`.

        Raises:
            OSError: the files cannot be read.
            ValueError: another kind of drafter, or one for another target.
        """
        self._layer = read_peagle(path, target, layer_numbers=layer_numbers)
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
        token, state = self._layer.masked_pair()
        states = self._states.catch_up_with_masks(sequences, gamma, token=token, state=state)
        logits, support = self._layer.scored(states), self._layer.support
        support = None if support is None else support.expand(sequences.num_rows, -1)
        while chain.add(logits[:, chain.num_nodes], support):
            pass
        return chain.draft()
