"""The Trainable protocol: interface between the command `train` and a trainable part.

Training data are windows of text, tokens [B, T] int64. Models with an encoder are trained on pairs instead, [B, 2, T]:
sources, and the texts that answer them, which begin with the model's start tokens. Both are padded with FILLER.
A token that is read but not learned, such as a user's in a conversation, stands as its complement below FILLER
(`complement`).
"""

from pathlib import Path
from typing import Protocol, TypeGuard, TypeVar

import numpy as np
from torch import Tensor, nn

from framework.models.target import Target

FILLER = -1  # padding after the source or the text of a pair
Integers = TypeVar("Integers", int, np.ndarray, Tensor)


class Trainable(Protocol):
    """A part that is fitted to tokens while the target stays frozen, and saved in the form that a drafter loads.

    Built by a factory that gets `target: Target` and the options under `trainable:` of a yaml in conf/training.
    Training calls `loss` once per step, `evaluate` now and then, and `save` once at the end.
    """

    module: nn.Module
    """Its parameters that require a gradient are trained, and a checkpoint keeps its state_dict."""

    def loss(self, tokens: Tensor) -> Tensor:
        """Scalar loss with a gradient; tokens are windows [B, T] of the training text, or pairs [B, 2, T].

        Raises:
            ValueError: windows of an unsupported length. Training checks this before it generates any text.
        """
        ...

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Metrics on held-out windows [n, T] or pairs [n, 2, T], by name."""
        ...

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the files that the drafter loads.

        Args:
            folder: folder of this training; it may hold other files.
            held_out: [n, T] windows or [n, 2, T] pairs, for metrics that are stored with the weights.
        """
        ...


class CountsTokens(Trainable, Protocol):
    """Optional: a Trainable that depends on how often tokens occur."""

    def use_counts(self, counts: Tensor) -> None:
        """Take the occurrences of every token in the training text, [V]; called once, before the first step."""
        ...


def counts_tokens(trainable: Trainable) -> TypeGuard[CountsTokens]:
    """Whether a trainable needs the counts of tokens."""
    return hasattr(trainable, "use_counts")


class TrainsTarget(Trainable, Protocol):
    """Optional: a Trainable that also trains a copy of the target; its drafter fits only that copy."""

    def trained_target(self) -> Target:
        """The copy as trained so far; `save` writes it into the folder, as a model that `target.path` loads."""
        ...


def trains_target(trainable: Trainable) -> TypeGuard[TrainsTarget]:
    """Whether a trainable also trains a copy of the target."""
    return hasattr(trainable, "trained_target")


def complement(ids: Integers) -> Integers:
    """The complement below FILLER of token ids, which marks them as read but not learned; its own inverse."""
    return 2 * FILLER - ids


def ids_of(tokens: Tensor) -> Tensor:
    """Token ids of training tokens of any shape, int64; 0 for FILLER."""
    return tokens.where(tokens >= FILLER, complement(tokens)).clamp(min=0)


def is_learned(tokens: Tensor) -> Tensor:
    """Training tokens that losses and accuracies count, bool of any shape."""
    return tokens > FILLER


def model_inputs(tokens: Tensor) -> dict[str, Tensor]:
    """Keyword arguments for a transformers model to read windows or pairs."""
    if tokens.dim() == 2:
        return {"input_ids": ids_of(tokens)}
    source = tokens[:, 0]
    return {
        "input_ids": ids_of(source),
        "attention_mask": (source != FILLER).long(),
        "decoder_input_ids": ids_of(texts_of(tokens)),
    }


def texts_of(tokens: Tensor) -> Tensor:
    """[B, T] int64 training tokens: the windows themselves, or the texts of pairs, T that of the longest."""
    if tokens.dim() == 2:
        return tokens
    texts = tokens[:, 1]
    return texts[:, : int((texts != FILLER).any(0).sum())]
