"""Pairs of tokenised texts to train models with an encoder on: sources, and what answers them."""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.prompts.prompt_source import PromptSource, Text
from framework.trainable import FILLER

WIDTHS = 8  # batches are as wide as a multiple of it: few shapes


def read_pairs(source: PromptSource, *, text: str) -> list[Text]:
    """
    Args:
        source: of texts with references.
        text: the key that says what it is.

    Raises:
        ValueError: a text has no reference to be trained on.
    """
    texts = list(source.texts())
    for each in texts:
        if each.reference is None:
            raise ValueError(
                f"{text} gives {each.name}, which has no reference; allowed: texts with references, such as those of "
                "english_german_train or parallel_text"
            )
    return texts


class Pairs:
    """Pairs, those of like length beside each other, so that a batch is filled up with little."""

    def __init__(
        self,
        texts: Sequence[Text],
        tokenizer: PreTrainedTokenizerBase,
        *,
        start: list[int],
        longest: int,
        length: str = "training.window",
    ):
        """
        Args:
            texts: all with references.
            tokenizer: of both sides; it ends them as it likes.
            start: what every answer begins with.
            longest: most tokens of a side; longer pairs are left out.
            length: the key that says so.

        Raises:
            ValueError: no pair is so short.
        """
        sources, answers = (
            tokenizer([getattr(text, side) for text in texts], verbose=False)["input_ids"]
            for side in ("text", "reference")
        )
        pairs = [(source, start + answer) for source, answer in zip(sources, answers, strict=True)]
        pairs = [pair for pair in pairs if max(map(len, pair)) <= longest]
        if not pairs:
            raise ValueError(f"no pair has at most {longest} tokens a side; raise {length}")
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        self.tokens = np.full((len(pairs), 2, longest), FILLER, dtype=np.int32)
        for row, pair in enumerate(pairs):
            for side, ids in enumerate(pair):
                self.tokens[row, side, : len(ids)] = ids

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Of both sides."""
        return int((self.tokens != FILLER).sum())

    def fingerprint(self) -> str:
        """16 hex digits that name the tokens."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]

    def drawn(self, count: int, *, seed: int, step: int) -> Tensor:
        """[count, 2, T] int64: neighbours from anywhere; a step draws the same ones always."""
        most = max(0, len(self.tokens) - count)
        first = int(np.random.default_rng((seed, step)).integers(most + 1))
        return _narrowed(self.tokens[first : first + count])

    def spread(self, count: int) -> Tensor:
        """[count, 2, T] int64 (fewer if there are fewer) at even distances over all."""
        rows = np.linspace(0, len(self.tokens) - 1, min(count, len(self.tokens))).astype(int)
        return _narrowed(self.tokens[rows])


def _narrowed(tokens: np.ndarray) -> Tensor:
    """As wide as the longest side needs."""
    needed = int((tokens != FILLER).any((0, 1)).sum())
    width = min(tokens.shape[2], -(-needed // WIDTHS) * WIDTHS)
    return torch.from_numpy(tokens[:, :, :width].astype(np.int64))
