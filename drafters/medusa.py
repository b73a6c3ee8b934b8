"""Heads on the target's own hidden state draft several tokens at once, without another pass (Cai et al., 2024)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from framework.draft import Draft, Outcome
from framework.lesson import Lesson
from framework.medusa_heads import load_heads
from framework.positions_at_once import PositionsAtOnce
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target


class Medusa:
    """Drafts from the hidden state behind the last accepted token; no head sees what another one drafted.

    As a tree it takes the top tokens of every head, arranged in the tree that held-out accuracies make the best one of
    its budget; as a greedy chain the likeliest token of each head; as a sampled chain a token drawn from each.

    The pass that verifies a draft has made the state that the next one is drafted from: this is the combined scoring
    and proposal of blockwise parallel decoding (Stern et al., 2018), whose drafts are greedy chains.
    """

    def __init__(self, target: Target, *, path: str, form: str, nodes: int):
        """
        Args:
            target: whom the heads were trained for.
            path: folder of heads, as `experiments.train` writes it.
            form: tree, greedy_chain or sampled_chain.
            nodes: budget of the tree, >= 1; chains have one node for every head.

        Raises:
            OSError: no heads there.
            ValueError: an unknown form, no nodes, or heads for another target.
        """
        PositionsAtOnce.check_form(form)
        self._heads, accuracies = load_heads(path, target)
        self._longest_text = target.model.context  # heads read the target's states
        self._positions = PositionsAtOnce(form=form, nodes=nodes, accuracies=accuracies, device=target.device)
        self.law, self.shape = self._positions.law, self._positions.shape
        self.num_uniforms, self.num_nodes = self._positions.num_uniforms, self._positions.num_nodes

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self.observe(sequences, prefill)

    @torch.no_grad()
    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft as deep as gamma and the number of heads allow."""
        logits = self._heads(self._hidden, self._positions.depth(gamma)).float()
        return self._positions.draft(logits, self._sampling, uniforms)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        # The target's output layer made the token that is pending now from this state.
        hidden = outcome.target.hidden
        assert hidden is not None, "heads need TargetRows.hidden"
        self._hidden = hidden[torch.arange(len(hidden), device=hidden.device), outcome.stop]

    @property
    def module(self) -> nn.Module:
        return self._heads

    @property
    def longest_text(self) -> int:
        return self._longest_text

    def logits_of(self, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
        """Head k learns the law of the token k places behind the one that its state is for, given the text between."""
        p_logits, q_logits = [], []
        for lesson in lessons:
            assert lesson.hidden is not None, "heads need TargetRows.hidden"
            for head, logits in enumerate(self._heads(lesson.hidden).unbind(1), start=1):
                p_logits.append(lesson.p_logits[head:])
                q_logits.append(logits[: len(p_logits[-1])])
        return torch.cat(p_logits), torch.cat(q_logits)

    def refresh(self, sequences: Sequences) -> None:
        """Nothing was computed with the heads as they were."""
