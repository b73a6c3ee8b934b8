"""Training of DART's layer on the target's distribution; the target stays frozen.

B rows, T tokens, D positions, R ranks, V vocabulary, n places in the windows.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.core.validation import check_whole
from framework.heads.dart_layer import DartLayer, save_layer
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes, uniforms_per_window
from framework.training.future_tokens import (
    NO_LABEL,
    accuracies_by_rank,
    check_ranges,
    check_window,
    labels_after,
    top_accuracies,
)
from framework.training.target_states import TargetStates
from framework.training.trainable import ids_of, texts_of


class DartTraining:
    """Minimises sum_d discount^(d-1) KL(p_d || q_d) over the D tokens after pending.

    p_d is the target's distribution of the d-th token given all tokens before it. q_d is the layer's, given the text up
    to pending only (Liu et al., 2026, 2601.19278).
    """

    def __init__(self, target: Target, *, num_positions: int, discount: float, ranks: int, stride: int):
        """
        Args:
            target: stays frozen.
            num_positions: D >= 1.
            discount: in (0, 1], weight of a position relative to the one before it.
            ranks: R, number of top tokens per position that held-out accuracies count and a tree may hold.
            stride: distance between the trained places of a window; the first place varies between windows.

        Raises:
            ValueError: an option out of range.
        """
        check_whole("num_positions", num_positions, least=1)
        check_whole("stride", stride, least=1)
        check_ranges(target, discount=discount, ranks=ranks)
        self._layer = DartLayer(target, num_positions=num_positions).float()
        self.module: nn.Module = self._layer
        self._target, self.states = target, TargetStates(target)
        self._weights = torch.tensor([discount**position for position in range(num_positions)], device=target.device)
        self._ranks, self._stride = ranks, stride

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < D + 2, so that some position has no label.
        """
        check_window(tokens, self._layer.num_positions, "num_positions")
        stride = min(self._stride, tokens.shape[-1] - 2)
        first = (stride * uniforms_per_window(tokens, 1)).long()
        places = first + stride * torch.arange((tokens.shape[-1] - 2) // stride, device=tokens.device)
        labels = _at(labels_after(tokens, self._layer.num_positions), places)
        logits, hidden = self._logits(tokens, places)
        wanted = self._distributions_after(hidden, places)
        nats = functional.kl_div(logits.log_softmax(-1), wanted, reduction="none", log_target=True).sum(-1)
        known = labels != NO_LABEL
        per_position = nats.where(known, 0.0).sum((0, 1)) / mean_over_processes(known.sum((0, 1)))
        return (self._weights * per_position).sum()

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Top-1 and top-R accuracy of every position."""
        return top_accuracies(self.accuracies(tokens), "position")

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the layer with its accuracies on held-out windows [n, T] int64."""
        save_layer(folder, self._layer, target=self._target, accuracies=self.accuracies(held_out))

    def accuracies(self, tokens: Tensor) -> list[list[float]]:
        """`[D][R]`: how often the token of each rank is correct, over all places of windows [n, T] int64."""

        def logits_of(windows: Tensor) -> Tensor:
            every = torch.arange(windows.shape[-1] - 2, device=windows.device)
            return self._logits(windows, every.expand(len(windows), -1))[0]

        return accuracies_by_rank(logits_of, tokens, number=self._layer.num_positions, ranks=self._ranks)

    def _logits(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """[B, n, D, V] float32 logits of the layer at places [B, n], and [B, T, H] the target's states."""
        hidden, _ = self.states(tokens)
        pending = ids_of(texts_of(tokens))[:, 1:-1]
        return self.module(_at(hidden, places), _at(pending, places)).float(), hidden

    @torch.no_grad()
    def _distributions_after(self, hidden: Tensor, places: Tensor) -> Tensor:
        """[B, n, D, V] log-probabilities of the target after pending; entries beyond the text are meaningless."""
        layer = self._target.model.model.get_output_embeddings()
        length, depth = hidden.shape[1], self._layer.num_positions
        index = (places.unsqueeze(2) + 1 + torch.arange(depth, device=hidden.device)).clamp(max=length - 1)
        logits = layer(_at(hidden, index))[..., : self._target.vocabulary_size]
        return logits.float().log_softmax(-1)


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[B, *P, ...] entries of values [B, M, ...] at places [B, *P] int64 of each row."""
    rows = torch.arange(len(places), device=places.device).view(-1, *[1] * (places.dim() - 1))
    return values[rows, places]
