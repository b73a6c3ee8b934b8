"""The committed tokens of a batch: written by the loops, read by everyone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass
class Sequences:
    """Rows of committed tokens. The last one of a row is *pending*: no model has read it yet.

    Attributes:
        tokens: [B, T] int64; what lies at or beyond a row's length means nothing. T is fixed for a generation.
        lengths: [B] int64 committed tokens per row, the prompt included.
        active: [B] bool: rows still decoding.
        prompt_lengths: [B] int64.
        longest: the largest of the lengths, known to the host so that no pass has to ask the device.
        texts: per row its committed tokens, as far as the host has read them: between rounds, all of them.
        source: [B, S] int64 encoder input, or None.
        source_mask: [B, S] bool, or None.
    """

    tokens: Tensor
    lengths: Tensor
    active: Tensor
    prompt_lengths: Tensor
    longest: int
    texts: list[list[int]]
    source: Tensor | None = None
    source_mask: Tensor | None = None

    @classmethod
    def from_prompts(cls, prompts: list[list[int]], *, width: int, device: torch.device) -> "Sequences":
        """Lay prompts (lists of token ids, none empty) into a buffer of `width` tokens a row."""
        tokens = torch.zeros(len(prompts), width, dtype=torch.int64)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return cls(
            tokens=tokens.to(device),
            lengths=lengths.to(device),
            active=torch.ones(len(prompts), dtype=torch.bool, device=device),
            prompt_lengths=lengths.to(device),
            longest=int(lengths.max()),
            texts=[list(prompt) for prompt in prompts],
        )

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def pending(self) -> Tensor:
        """[B] int64: the last committed token of each row."""
        return self.tokens.gather(1, self.lengths.unsqueeze(1) - 1).squeeze(1)

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Commit the first counts[b] of tokens[b] to every row on the device; the rest is for whoever reads them there.

        Args:
            tokens: [B, M] int64.
            counts: [B] int64.
        """
        # Writing all M is harmless: what lies beyond a row's length means nothing.
        positions = self.lengths.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        self.tokens.scatter_(1, positions, tokens)
        self.lengths = self.lengths + counts

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """The same, and let the host know."""
        self.append(tokens, counts)
        for text, new, count in zip(self.texts, tokens.tolist(), counts.tolist(), strict=True):
            text += new[:count]
        self.longest = max(map(len, self.texts))


class TakesTokens(Protocol):
    """What grows with a row's text: `tokens` are those it has taken in."""

    tokens: list[int]

    def append(self, token: int) -> None: ...


def catch_up(growing: Sequence[TakesTokens], sequences: Sequences) -> None:
    """Let each take in what its row has committed since the last time."""
    for each, text in zip(growing, sequences.texts, strict=True):
        for token in text[len(each.tokens) :]:
            each.append(token)
