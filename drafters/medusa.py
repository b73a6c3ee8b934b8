"""Medusa drafter: heads on the target's hidden state draft several tokens without an extra pass (Cai et al., 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome
from framework.core.fixed_buffer import FixedBuffer
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.drafting.parallel_draft import ParallelDraft
from framework.heads.medusa_heads import load_heads
from framework.models.target import Target
from framework.training.online_examples import OnlineExample


class Medusa:
    """Drafts from the target's hidden state at the last accepted token; no head sees another head's tokens.

    A tree holds the top tokens of every head, arranged for the largest expected number of accepted nodes under
    held-out accuracies and the node budget. A greedy chain holds the most likely token of each head, a sampled chain
    one draw from each.

    The pass that verifies one draft also computes the state for the next one. This is the combined scoring and proposal
    of blockwise parallel decoding (Stern et al., 2018), whose drafts are greedy chains.
    """

    def __init__(self, target: Target, *, path: str, form: str, nodes: int):
        """
        Args:
            target: the target that the heads were trained for.
            path: folder of the heads, written by `experiments.train`; or a published drafter's folder or hub name.
            form: tree, greedy_chain or sampled_chain.
            nodes: node budget of the tree, >= 1; chains have one node per head.

        Raises:
            OSError: the folder holds no heads, or damaged ones.
            ValueError: an unknown form, nodes < 1, or heads trained for another target.
        """
        ParallelDraft.check_form(form)
        self._heads, accuracies = load_heads(path, target)
        self._longest_text = target.model.context  # heads read the target's states
        self._positions = ParallelDraft(form=form, nodes=nodes, accuracies=accuracies, device=target.device)
        self.scheme, self.shape = self._positions.scheme, self._positions.shape
        self._buffer = FixedBuffer()
        self.num_uniforms, self.num_nodes = self._positions.num_uniforms, self._positions.num_nodes

    def build_trees(self, num_rows: int, max_gamma: int) -> None:
        self._positions.build_trees(num_rows, max_gamma)

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._hidden = self._buffer.holding(prefill.state_at_pending)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        self._hidden[rows] = prefill.state_at_pending

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft to depth gamma, or to the depth of the tree or number of heads if that is smaller."""
        logits = self._heads(self._hidden, self._positions.depth(gamma)).float()
        return self._positions.draft(logits, self._sampling, uniforms)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        self._hidden.copy_(outcome.state_at_pending)

    @property
    def models(self) -> list[nn.Module]:
        return [self._heads]

    @property
    def module(self) -> nn.Module:
        return self._heads

    @property
    def longest_text(self) -> int:
        return self._longest_text

    def logits_of(self, examples: Sequence[OnlineExample]) -> tuple[Tensor, Tensor]:
        """Paired logits [N, V] of target and heads: head k at state i with the target's logits at state i + k."""
        p_logits, q_logits = [], []
        for example in examples:
            assert example.hidden is not None, "heads need Outcome.hidden"
            for head, logits in enumerate(self._heads(example.hidden).unbind(1), start=1):
                p_logits.append(example.p_logits[head:])
                q_logits.append(logits[: len(p_logits[-1])])
        return torch.cat(p_logits), torch.cat(q_logits)

    def refresh(self, sequences: Sequences) -> None:
        """Does nothing: no stored state depends on the heads' weights."""
