"""A layer drafts on the target's last states, and on those it predicts itself (EAGLE; Li et al., 2024)."""

from collections.abc import Callable

import torch
from torch import Tensor

from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.eagle_layer import load_eagle
from framework.eagle_states import EagleStates
from framework.growing_chain import GrowingChain
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target


class Eagle:
    """Draws a chain: the target's output layer scores a predicted state, and the token drawn goes into the next one."""

    law = Law.IID
    shape = Shape.CHAIN
    keep_drafting: Callable[[DraftedNode], Tensor] | None = None

    def __init__(self, target: Target, *, path: str):
        """
        Args:
            target: whom the layer was trained for.
            path: folder of the layer, as `experiments.train` writes it.

        Raises:
            OSError: no layer there.
            ValueError: a layer for another target.
        """
        self._states = EagleStates(load_eagle(path, target))

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    @torch.no_grad()
    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._states.begin(sequences, prefill, room=0)

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            keep_drafting=self.keep_drafting,
        )
        states = self._states.catch_up(sequences, gamma)
        while chain.add(self._states.layer.scored(states)):
            states = self._states.read_chain(sequences, states, chain.last, depth=chain.num_nodes)
        return chain.draft()

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._states.observe(sequences, outcome)
