"""MTP drafter: the layer for multi-token prediction that a target is published with (DeepSeek-AI, 2024)."""

import torch
from torch import Tensor

from framework.core.draft import Draft
from framework.core.drafter import ShouldContinue
from framework.core.sequences import Sequences
from framework.drafting.chain_builder import ChainBuilder
from framework.heads.eagle_states import DrafterOnStates
from framework.heads.mtp_layer import read_mtp
from framework.models.target import Target


class Mtp(DrafterOnStates):
    """Draws a chain with one layer: it reads each drawn token with the state predicted before it.

    The layer is trained to predict one token after the next; deeper nodes use it again, as serving engines do.
    """

    stepwise = True

    def __init__(self, target: Target, *, path: str | None, chained: str):
        """
        Args:
            target: the target that the layer belongs to.
            path: folder or hub name of a checkpoint with the layer; None: the target's own.
            chained: after_norm or before_norm: the predicted state that is fed back.

        Raises:
            OSError: the files cannot be read.
            ValueError: no such layer, several of them, or one of another target.
        """
        self._layer = read_mtp(path, target, chained=chained)
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
        states = self._states.catch_up(sequences, gamma)
        while chain.add(self._layer.scored(states)):
            states = self._states.read_chain(sequences, states, chain.last, depth=chain.num_nodes)
        return chain.draft()
