"""Tokenised (source, answer) pairs for training encoder-decoder models."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.core.option_error import options_under
from framework.prompts.prompt_source import PromptSource, Text
from framework.prompts.truncation import leading_tokens
from framework.training.trainable import FILLER

Pair = tuple[list[int], list[int]]  # token ids of a source and of its answer
WIDTHS = 8  # batch widths are multiples of it, to limit the number of shapes


def read_pairs(source: PromptSource, *, text: str) -> list[Text]:
    """Read all texts of a source and check that they have references.

    Args:
        source: source of texts with references.
        text: the source's config key, for errors.

    Raises:
        ValueError: a text has no reference.
    """
    with options_under(text):
        texts = list(source.texts())
    for each in texts:
        if each.reference is None:
            raise ValueError(
                f"{text} gives {each.name}, which has no reference; allowed: texts with references, such as those of "
                "english_german_train or parallel_text"
            )
    return texts


def tokenised(
    texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, *, start: list[int], longest_source: int | None = None
) -> list[Pair]:
    """Token ids of texts and their references.

    Args:
        texts: texts, all with references.
        tokenizer: tokenizer of both sides; special tokens that it appends are kept.
        start: token ids prepended to every answer.
        longest_source: number of tokens to which sources are cut on the right, before their end token; None: no limit.
    """
    sources = leading_tokens(tokenizer, [text.text for text in texts], longest_source)
    answers = tokenizer([text.reference for text in texts], verbose=False)["input_ids"]
    return [(source, start + answer) for source, answer in zip(sources, answers, strict=True)]


class Pairs:
    """Pairs sorted by length, so that batches of neighbours need little padding."""

    def __init__(self, pairs: Iterable[Pair], *, longest: int, length: str = "training.window"):
        """
        Args:
            pairs: token ids of sources and answers.
            longest: maximum tokens of a side; longer pairs are left out.
            length: config key of `longest`, for errors.

        Raises:
            ValueError: every pair is longer.
        """
        kept = [pair for pair in pairs if max(map(len, pair)) <= longest]
        if not kept:
            raise ValueError(f"no pair has at most {longest} tokens a side; raise {length}")
        kept.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        self.tokens = np.full((len(kept), 2, longest), FILLER, dtype=np.int32)
        for row, pair in enumerate(kept):
            for side, ids in enumerate(pair):
                self.tokens[row, side, : len(ids)] = ids

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of both sides, padding excluded."""
        return int((self.tokens != FILLER).sum())

    def fingerprint(self) -> str:
        """Hash of the tokens, 16 hex digits."""
        return hashlib.sha256(self.tokens.tobytes()).hexdigest()[:16]

    def drawn(self, count: int, *, seed: int, step: int) -> Tensor:
        """[count, 2, T] int64: consecutive pairs from a random position, determined by seed and step."""
        most = max(0, len(self.tokens) - count)
        first = int(np.random.default_rng((seed, step)).integers(most + 1))
        return _narrowed(self.tokens[first : first + count])

    def sample_evenly(self, count: int) -> Tensor:
        """[count, 2, T] int64 (or all pairs if fewer) at even distances."""
        rows = np.linspace(0, len(self.tokens) - 1, min(count, len(self.tokens))).astype(int)
        return _narrowed(self.tokens[rows])


def _narrowed(tokens: np.ndarray) -> Tensor:
    """Cut the padding to the longest side, rounded up to a multiple of WIDTHS."""
    needed = int((tokens != FILLER).any((0, 1)).sum())
    width = min(tokens.shape[2], -(-needed // WIDTHS) * WIDTHS)
    return torch.from_numpy(tokens[:, :, :width].astype(np.int64))
