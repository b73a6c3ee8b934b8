"""The committed tokens of a batch: written by the loops, read by everyone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

LEAST_SOURCE = 16  # slots


@dataclass(frozen=True)
class Conditioned:
    """What an encoder-decoder model is given: a source, and how the text begins that it is to go on with."""

    source: list[int]
    text: list[int]

    def __add__(self, tokens: list[int]) -> "Conditioned":
        """The same source with more of the text."""
        return Conditioned(self.source, self.text + tokens)

    def __len__(self) -> int:
        """Tokens of the text, which are those that take up the context."""
        return len(self.text)


Prompt: TypeAlias = list[int] | Conditioned
"""Token ids that a decoder-only model goes on with; or what an encoder-decoder model is given."""


def text_of(prompt: Prompt) -> list[int]:
    """The tokens that are to be gone on with."""
    return prompt.text if isinstance(prompt, Conditioned) else prompt


def with_text(prompt: Prompt, text: list[int]) -> Prompt:
    """The same source, if there is one, with another text."""
    return Conditioned(prompt.source, text) if isinstance(prompt, Conditioned) else text


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
    def from_prompts(cls, prompts: Sequence[Prompt], *, width: int, device: torch.device) -> "Sequences":
        """Lay prompts (none empty) into a buffer of `width` tokens a row; all have a source, or none."""
        texts = [text_of(prompt) for prompt in prompts]
        sources = [prompt.source for prompt in prompts if isinstance(prompt, Conditioned)]
        tokens, _ = _laid_out(texts, width)
        lengths = torch.tensor([len(text) for text in texts])
        source, source_mask = _laid_out(sources, _width_of(sources)) if sources else (None, None)
        return cls(
            tokens=tokens.to(device),
            lengths=lengths.to(device),
            active=torch.ones(len(prompts), dtype=torch.bool, device=device),
            prompt_lengths=lengths.to(device),
            longest=int(lengths.max()),
            texts=[list(text) for text in texts],
            source=None if source is None else source.to(device),
            source_mask=None if source_mask is None else source_mask.to(device),
        )

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """B and T, and S where there are sources: what a program is made for."""
        return (*self.tokens.shape, *(() if self.source is None else self.source.shape[1:]))

    @property
    def sources(self) -> list[list[int]]:
        """Per row the tokens of its source, read from the device; none where there is no encoder."""
        if self.source is None or self.source_mask is None:
            return [[] for _ in range(self.num_rows)]
        return [source[mask].tolist() for source, mask in zip(self.source, self.source_mask, strict=True)]

    @property
    def committed(self) -> list[Prompt]:
        """Per row all that is committed, the prompt included, read from the device."""
        texts = [tokens[:length] for tokens, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]
        if self.source is None:
            return list(texts)
        return [Conditioned(source, text) for source, text in zip(self.sources, texts, strict=True)]

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


def _laid_out(rows: list[list[int]], width: int) -> tuple[Tensor, Tensor]:
    """[B, width] int64 tokens from the left on, and [B, width] bool where they are."""
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    for row, its in enumerate(rows):
        tokens[row, : len(its)] = torch.tensor(its)
    return tokens, torch.arange(width) < torch.tensor([[len(its)] for its in rows])


def _width_of(sources: list[list[int]]) -> int:
    return max(LEAST_SOURCE, power_of_two(max(map(len, sources))))


def power_of_two(number: int) -> int:
    """The smallest that is not smaller: sizes that are rounded up so are few, and so are programs made for them."""
    return 1 << (number - 1).bit_length()


class TakesTokens(Protocol):
    """What grows with a row's text: its length is how many tokens of it are taken in."""

    def __len__(self) -> int: ...

    def append(self, token: int) -> None: ...


def catch_up(growing: Sequence[TakesTokens], sequences: Sequences) -> None:
    """Let each take in what its row has committed since the last time."""
    for each, text in zip(growing, sequences.texts, strict=True):
        for token in text[len(each) :]:
            each.append(token)
