"""A layer that drafts all positions at once is fitted to the target's law, while the target stays frozen.

B rows, T tokens, D positions, R ranks, V vocabulary, n places in the windows.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.medusa_training import NO_LABEL, WINDOWS_AT_ONCE, labels_behind, output_layer_input
from framework.parallel_layer import ParallelLayer, save_layer
from framework.target import Target
from framework.trainable import texts_of
from framework.whole_numbers import check_whole


class ParallelTraining:
    """Minimises sum_d discount^(d-1) KL(p_d || q_d), where p_d is the target's law of the d-th token behind pending.

    q_d knows the text up to pending only, and p_d all tokens before its own (Liu et al., 2026, 2601.19278).
    """

    def __init__(self, target: Target, *, num_positions: int, discount: float, ranks: int, every: int):
        """
        Args:
            target: stays frozen.
            num_positions: D >= 1.
            discount: in (0, 1], what a position weighs of the one before it.
            ranks: how many of a position's top tokens are counted in held-out accuracies, and may stand in a tree.
            every: one in so many places of the windows is trained on, each step another one.

        Raises:
            ValueError: a knob out of its range.
        """
        check_whole("training.trainable.num_positions", num_positions, least=1)
        check_whole("training.trainable.every", every, least=1)
        most = target.vocabulary_size
        for key, holds, value, allowed in (
            ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
            ("ranks", 1 <= ranks <= most, ranks, f"1 to the size of the target's vocabulary, {most}"),
        ):
            if not holds:
                raise ValueError(f"training.trainable.{key} is {value!r}; allowed: {allowed}")
        self._layer = ParallelLayer(target, num_positions=num_positions).float()
        self.module: nn.Module = self._layer
        self._target = target
        self._weights = torch.tensor([discount**position for position in range(num_positions)], device=target.device)
        self._ranks, self._every = ranks, every

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar; tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: T < D + 2, so that some position has nothing to predict.
        """
        if tokens.shape[-1] < self._layer.num_positions + 2:
            raise ValueError(
                f"training.window is {tokens.shape[-1]}; allowed: at least {self._layer.num_positions + 2}, two more "
                "than training.trainable.num_positions"
            )
        # Which place comes first follows from the tokens: a step that is repeated is the same.
        places = slice(int(tokens.sum()) % min(self._every, tokens.shape[-1] - 2), None, self._every)
        labels = labels_behind(tokens, self._layer.num_positions)[:, places]
        logits, hidden = self._logits(tokens, places)
        wanted = self._laws_behind(hidden, places)
        nats = functional.kl_div(logits.log_softmax(-1), wanted, reduction="none", log_target=True).sum(-1)
        known = labels != NO_LABEL
        per_position = nats.where(known, 0.0).sum((0, 1)) / known.sum((0, 1)).clamp(min=1)
        return (self._weights * per_position).sum()

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """For every position how often the right token was its best, and how often among its best R."""
        found = {}
        for position, by_rank in enumerate(self.accuracies(tokens), start=1):
            found[f"position {position} top-1"] = by_rank[0]
            found[f"position {position} top-{self._ranks}"] = sum(by_rank)
        return found

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the layer with its accuracies on held-out windows [n, T] int64."""
        save_layer(folder, self._layer, target=self._target, accuracies=self.accuracies(held_out))

    @torch.no_grad()
    def accuracies(self, tokens: Tensor) -> list[list[float]]:
        """[D][R] how often the token of each rank is the right one, over all places of windows [n, T] int64."""
        hits = torch.zeros(self._layer.num_positions, self._ranks, device=tokens.device)
        for windows in tokens.split(WINDOWS_AT_ONCE):
            ranked = self._logits(windows, slice(None))[0].topk(self._ranks).indices
            hits += (ranked == labels_behind(windows, self._layer.num_positions).unsqueeze(3)).sum((0, 1))
        num_known = (labels_behind(tokens, self._layer.num_positions) != NO_LABEL).sum((0, 1))
        return (hits / num_known.unsqueeze(1)).tolist()

    def _logits(self, tokens: Tensor, places: slice) -> tuple[Tensor, Tensor]:
        """[B, n, D, V] float32 of the layer at some places, and [B, T, H] the target's states at all of them."""
        hidden = output_layer_input(self._target.model.model, tokens)
        pending = texts_of(tokens)[:, 1:-1]
        return self.module(hidden[:, :-2][:, places], pending[:, places]).float(), hidden

    @torch.no_grad()
    def _laws_behind(self, hidden: Tensor, places: slice) -> Tensor:
        """[B, n, D, V] log-probabilities of the target for what follows pending; behind the text they mean nothing."""
        layer = self._target.model.model.get_output_embeddings()
        length, depth = hidden.shape[1], self._layer.num_positions
        first = torch.arange(length - 2, device=hidden.device)[places]
        index = (first.unsqueeze(1) + 1 + torch.arange(depth, device=hidden.device)).clamp(max=length - 1)
        logits = layer(hidden[:, index])[..., : self._target.vocabulary_size]
        return logits.float().log_softmax(-1)
