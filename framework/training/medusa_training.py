"""Medusa-1 training: heads are fitted to text; the target stays frozen and keeps its distribution.

B rows, T tokens, K heads, R ranks.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.heads.medusa_heads import MedusaHeads, load_heads, save_heads
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes
from framework.training.future_tokens import (
    NO_LABEL,
    accuracies_by_rank,
    check_ranges,
    check_window,
    labels_after,
    top_accuracies,
)
from framework.training.target_states import TargetStates


class MedusaTraining:
    """Minimises sum_k discount^k CE_k, where head k = 1...K at position t predicts token t + 1 + k."""

    def __init__(
        self, target: Target, *, num_heads: int, output: str, discount: float, ranks: int, path: str | None = None
    ):
        """
        Args:
            target: stays frozen.
            num_heads: K >= 1.
            output: output layers of the heads: tied, mapped or own, as in `MedusaHeads`.
            discount: in (0, 1], weight of a head relative to the one before it.
            ranks: R, number of top tokens per head that held-out accuracies count and a tree may hold.
            path: folder of heads to train further, such as those of an earlier version of the target; None: new heads.

        Raises:
            OSError: the folder holds no heads, or damaged ones.
            ValueError: an option out of range, or heads that do not match num_heads and output.
        """
        check_whole("num_heads", num_heads, least=1)
        check_ranges(target, discount=discount, ranks=ranks)
        self.heads = (
            MedusaHeads(target, num_heads=num_heads, output=output).float()
            if path is None
            else _begun(path, target, num_heads=num_heads, output=output)
        )
        self.module: nn.Module = self.heads
        self._target, self.states = target, TargetStates(target)
        self._num_heads = num_heads
        self._weights = torch.tensor([discount**head for head in range(1, num_heads + 1)], device=target.device)
        self._ranks = ranks

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss of tokens [B, T] or [B, 2, T] int64.

        Raises:
            ValueError: windows with T < K + 2, so that some head has no label.
        """
        check_window(tokens, self._num_heads, "num_heads")
        return self.loss_of(self._logits(tokens), labels_after(tokens, self._num_heads))

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Scalar loss of logits [B, N, K, V] and labels [B, N, K]."""
        nats = functional.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
        per_head = nats.view(labels.shape).sum((0, 1)) / mean_over_processes((labels != NO_LABEL).sum((0, 1)))
        return (self._weights * per_head).sum()

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Top-1 and top-R accuracy of every head."""
        return top_accuracies(self.accuracies(tokens), "head")

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the heads with their accuracies on held-out windows [n, T] int64."""
        save_heads(folder, self.heads, target=self._target, accuracies=self.accuracies(held_out))

    def accuracies(self, tokens: Tensor) -> list[list[float]]:
        """`[K][R]`: how often the token of each rank is correct, over all positions of windows [n, T] int64."""
        return accuracies_by_rank(self._logits, tokens, number=self._num_heads, ranks=self._ranks)

    def _logits(self, tokens: Tensor) -> Tensor:
        """[B, T - 2, K, V] float32 logits of the heads at every position but the last two."""
        return self.heads(self.states(tokens)[0][:, :-2]).float()


def _begun(path: str, target: Target, *, num_heads: int, output: str) -> MedusaHeads:
    """Load heads to train further.

    Raises:
        OSError: the folder holds no heads, or damaged ones.
        ValueError: the heads do not match num_heads and output.
    """
    heads, _ = load_heads(path, target, to_be_trained_on=True)
    if (heads.num_heads, heads.output) != (num_heads, output):
        raise OptionError(
            "path",
            path,
            f"heads that match num_heads and output, {num_heads} and {output}",
            f"which holds {heads.num_heads} heads with output {heads.output}",
        )
    return heads.float()
