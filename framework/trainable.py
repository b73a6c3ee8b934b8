"""The Trainable protocol: what `experiments.train` needs of a drafter's trainable part.

What is trained on are windows of text, tokens [B, T] int64. Models with an encoder are given pairs instead, [B, 2, T]:
sources, and the texts that answer them, which begin with the model's start tokens. Both are filled up with FILLER.
"""

from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

FILLER = -1  # where a source or a text of a pair has ended


class Trainable(Protocol):
    """What is fitted to tokens while the target stays as it is, and saved as a drafter loads it.

    Built by a factory that gets `target: Target` and the knobs under `trainable:` of a yaml in conf/training. Training
    calls loss once per step and evaluate now and then; at the end save, once.
    """

    module: nn.Module
    """Its parameters that require a gradient are trained, and its state_dict is what a checkpoint keeps."""

    def loss(self, tokens: Tensor) -> Tensor:
        """What to make small, a scalar with a gradient; tokens are windows [B, T] of the training text, or pairs.

        Raises:
            ValueError: windows of a length that it cannot take. Training asks before any text is made.
        """
        ...

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """How good it is on held-out windows [n, T] or pairs, by name."""
        ...

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write what the drafter loads.

        Args:
            folder: of this training; there may be other files in it.
            held_out: [n, T] windows or pairs, to measure what is to be stored beside the weights.
        """
        ...


def model_inputs(tokens: Tensor) -> dict[str, Tensor]:
    """What a model in transformers is called with to read windows or pairs."""
    if tokens.dim() == 2:
        return {"input_ids": tokens}
    source, text = tokens.unbind(1)
    return {
        "input_ids": source.clamp(min=0),
        "attention_mask": (source != FILLER).long(),
        "decoder_input_ids": text.clamp(min=0),
    }


def texts_of(tokens: Tensor) -> Tensor:
    """[B, T] int64: the windows themselves, or the texts of pairs, FILLER behind them."""
    return tokens if tokens.dim() == 2 else tokens[:, 1]
