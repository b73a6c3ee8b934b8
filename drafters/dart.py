"""DART drafter: one shallow layer drafts all positions in parallel from mask tokens (Liu et al., 2026)."""

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome
from framework.core.fixed_buffer import FixedBuffer
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.drafting.parallel_draft import ParallelDraft
from framework.heads.dart_layer import load_layer
from framework.models.target import Target


class Dart:
    """Drafts all positions from the target's last state, the pending token, and one mask token per position.

    A tree holds the top tokens of every position, arranged for the largest expected number of accepted nodes under
    held-out accuracies and the node budget. A greedy chain holds the most likely token of each position. A sampled
    chain holds one draw from each position, independent of the draws before it.
    """

    def __init__(self, target: Target, *, path: str, form: str, nodes: int):
        """
        Args:
            target: the target that the layer was trained for.
            path: folder of the layer, written by `experiments.train`.
            form: tree, greedy_chain or sampled_chain.
            nodes: node budget of the tree, >= 1; chains have one node per position.

        Raises:
            OSError: the folder holds no layer, or a damaged one.
            ValueError: an unknown form, nodes < 1, or a layer trained for another target.
        """
        ParallelDraft.check_form(form)
        self._layer, accuracies = load_layer(path, target)
        self._positions = ParallelDraft(form=form, nodes=nodes, accuracies=accuracies, device=target.device)
        self.scheme, self.shape = self._positions.scheme, self._positions.shape
        self._buffer = FixedBuffer()
        self.num_uniforms, self.num_nodes = self._positions.num_uniforms, self._positions.num_nodes

    @property
    def models(self) -> list[nn.Module]:
        return [self._layer]

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        self._positions.build_trees(num_rows, max_gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._hidden = self._buffer.holding(prefill.state_at_pending)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        self._hidden[rows] = prefill.state_at_pending

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft to depth gamma, or to the depth of the tree or number of positions if that is smaller."""
        logits = self._layer(self._hidden, sequences.pending, self._positions.depth(gamma)).float()
        return self._positions.draft(logits, self._sampling, uniforms)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._hidden.copy_(outcome.state_at_pending)
