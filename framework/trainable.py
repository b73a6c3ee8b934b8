"""The Trainable protocol: what `experiments.train` needs of a drafter's trainable part."""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn


class Trainable(Protocol):
    """What is fitted to tokens while the target stays as it is, and saved as a drafter loads it.

    Built by a factory that gets `target: Target` and the knobs under `trainable:` of a yaml in conf/training. Training
    calls loss once per step and evaluate now and then; at the end save, once.
    """

    module: nn.Module
    """Its parameters that require a gradient are trained, and its state_dict is what a checkpoint keeps."""

    def loss(self, tokens: Tensor) -> Tensor:
        """What to make small, a scalar with a gradient; tokens [B, T] int64 are windows of the training text.

        Raises:
            ValueError: windows of a length that it cannot take. Training asks before any text is made.
        """
        ...

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """How good it is on held-out windows [n, T] int64, by name."""
        ...

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write what the drafter loads.

        Args:
            folder: of this training; there may be other files in it.
            held_out: [n, T] int64 windows, to measure what is to be stored beside the weights.
        """
        ...
