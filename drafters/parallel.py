"""One pass of a shallow layer over mask tokens drafts all positions at once (DART; Liu et al., 2026)."""

import torch
from torch import Tensor

from framework.draft import Draft, Outcome
from framework.parallel_layer import load_layer
from framework.positions_at_once import PositionsAtOnce
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target


class Parallel:
    """Drafts from the target's last state and the pending token, every position with a mask token in its place.

    As a tree it takes the top tokens of every position, arranged in the tree that held-out accuracies make the best one
    of its budget; as a greedy chain the likeliest token of each; as a sampled chain a token drawn from each, whatever
    was drawn before it.
    """

    def __init__(self, target: Target, *, path: str, form: str, nodes: int):
        """
        Args:
            target: whom the layer was trained for.
            path: folder of the layer, as `experiments.train` writes it.
            form: tree, greedy_chain or sampled_chain.
            nodes: budget of the tree, >= 1; chains have one node for every position.

        Raises:
            OSError: no layer there.
            ValueError: an unknown form, no nodes, or a layer for another target.
        """
        PositionsAtOnce.check_form(form)
        self._layer, accuracies = load_layer(path, target)
        self._positions = PositionsAtOnce(form=form, nodes=nodes, accuracies=accuracies, device=target.device)
        self.law, self.shape = self._positions.law, self._positions.shape
        self.num_uniforms, self.num_nodes = self._positions.num_uniforms, self._positions.num_nodes

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.observe(sequences, prefill)

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft as deep as gamma and the number of positions allow."""
        logits = self._layer(self._hidden, sequences.pending, self._positions.depth(gamma)).float()
        return self._positions.draft(logits, self._sampling, uniforms)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        # The target's output layer made the token that is pending now from this state.
        hidden = outcome.target.hidden
        assert hidden is not None, "the layer needs TargetRows.hidden"
        self._hidden = hidden[torch.arange(len(hidden), device=hidden.device), outcome.stop]
