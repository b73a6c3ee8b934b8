"""Committed tokens of a batch, written by the decoding loops only."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

LEAST_SOURCE = 16  # tokens of the narrowest buffer for sources

T = TypeVar("T")


@dataclass(frozen=True)
class Conditioned:
    """Prompt of an encoder-decoder model: the source, and the beginning of the decoder's text."""

    source: list[int]
    text: list[int]

    def __add__(self, tokens: list[int]) -> "Conditioned":
        """The same source, with tokens appended to the text."""
        return Conditioned(self.source, self.text + tokens)

    def __len__(self) -> int:
        """Number of tokens in the text; the source takes up no context."""
        return len(self.text)


Prompt: TypeAlias = list[int] | Conditioned
"""Token ids that a decoder-only model continues, or the source and text of an encoder-decoder model."""


def text_of(prompt: Prompt) -> list[int]:
    """The token ids that decoding continues."""
    return prompt.text if isinstance(prompt, Conditioned) else prompt


def with_text(prompt: Prompt, text: list[int]) -> Prompt:
    """The prompt with another text; its source, if any, stays."""
    return Conditioned(prompt.source, text) if isinstance(prompt, Conditioned) else text


@dataclass
class Sequences:
    """Rows of committed tokens. The last token of a row is *pending*: no model has read it yet.

    A commit updates tokens, lengths and active in place: clone what is to be kept from round to round.

    Attributes:
        tokens: [B, T] int64; entries at or beyond a row's length are meaningless. T is fixed for a generation.
        lengths: [B] int64 committed tokens per row, the prompt included.
        active: [B] bool: rows still decoding.
        prompt_lengths: [B] int64.
        longest: the largest of the lengths, kept on the host so that passes need no device synchronisation.
        texts: committed tokens per row on the host; complete between rounds.
        source: [B, S] int64 encoder input, or None.
        source_mask: [B, S] bool: which entries of source are tokens, or None.
        compiled: whether their decoder runs compiled graphs.
    """

    tokens: Tensor
    lengths: Tensor
    active: Tensor
    prompt_lengths: Tensor
    longest: int
    texts: list[list[int]]
    source: Tensor | None = None
    source_mask: Tensor | None = None
    compiled: bool = False

    @classmethod
    def from_prompts(
        cls,
        prompts: Sequence[Prompt],
        *,
        width: int,
        least_source: int = LEAST_SOURCE,
        device: torch.device,
        compiled: bool = False,
    ) -> "Sequences":
        """Copy non-empty prompts into buffers of `width` tokens per row, and of at least `least_source` for sources.

        Either all prompts have a source, or none has.
        """
        texts = [text_of(prompt) for prompt in prompts]
        sources = [prompt.source for prompt in prompts if isinstance(prompt, Conditioned)]
        tokens, _ = _laid_out(texts, width)
        lengths = torch.tensor([len(text) for text in texts])
        longest = max(map(len, sources), default=0)
        source, source_mask = _laid_out(sources, source_width(longest, least_source)) if sources else (None, None)
        return cls(
            tokens=tokens.to(device),
            lengths=lengths.to(device),
            active=torch.ones(len(prompts), dtype=torch.bool, device=device),
            prompt_lengths=lengths.to(device, copy=True),
            longest=int(lengths.max()),
            texts=[list(text) for text in texts],
            source=None if source is None else source.to(device),
            source_mask=None if source_mask is None else source_mask.to(device),
            compiled=compiled,
        )

    def replace_rows(self, rows: list[int], others: "Sequences") -> None:
        """Replace rows by those of other sequences of the same width, in place; the sources stay."""
        index = torch.tensor(rows, device=self.tokens.device)
        for name in ("tokens", "lengths", "active", "prompt_lengths"):
            getattr(self, name).index_copy_(0, index, getattr(others, name))
        put(self.texts, rows, others.texts)
        self.longest = max(map(len, self.texts))

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, T), or (B, T, S) with sources: the sizes that a compiled graph is specialised on."""
        return (*self.tokens.shape, *(() if self.source is None else self.source.shape[1:]))

    @property
    def sources(self) -> list[list[int]]:
        """Source tokens per row, read from the device; empty lists without an encoder."""
        if self.source is None or self.source_mask is None:
            return [[] for _ in range(self.num_rows)]
        return [source[mask].tolist() for source, mask in zip(self.source, self.source_mask, strict=True)]

    @property
    def committed(self) -> list[Prompt]:
        """Committed tokens per row, the prompt included, and its source, read from the device."""
        texts = [tokens[:length] for tokens, length in zip(self.tokens.tolist(), self.lengths.tolist(), strict=True)]
        if self.source is None:
            return list(texts)
        return [Conditioned(source, text) for source, text in zip(self.sources, texts, strict=True)]

    def snapshot(self) -> tuple[object, ...]:
        """Copy of the state owned by the loop, read from the device, to detect changes made by a drafter."""
        state = (self.committed, self.active.tolist(), self.prompt_lengths.tolist(), self.longest)
        return *state, [list(text) for text in self.texts]

    def row(self, number: int) -> "Sequences":
        """One row, whose tensors share memory with these."""
        tensors: dict[str, Any] = {
            name: value[number : number + 1] for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        texts = [self.texts[number]]
        return replace(self, **tensors, texts=texts, longest=len(texts[0]))

    def with_longest(self, longest: int) -> "Sequences":
        """The same rows with another `longest`, which a compiled graph takes as an input."""
        return replace(self, longest=longest)

    @property
    def pending(self) -> Tensor:
        """[B] int64: the last committed token of each row."""
        return self.tokens.gather(1, self.lengths.unsqueeze(1) - 1).squeeze(1)

    def append(self, tokens: Tensor, counts: Tensor) -> None:
        """Commit the first counts[b] of tokens[b] to every row on the device; the caller updates texts and longest.

        Args:
            tokens: [B, M] int64.
            counts: [B] int64 in 0..M.
        """
        # Writing all M is harmless: entries beyond a row's length are meaningless.
        positions = self.lengths.unsqueeze(1) + torch.arange(tokens.shape[1], device=tokens.device)
        rows = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
        self.tokens[rows, positions] = tokens  # a compiled `scatter_` would copy the whole buffer
        self.lengths.add_(counts)

    def commit(self, tokens: Tensor, counts: Tensor) -> None:
        """As `append`, and update texts and longest, which waits for the device."""
        self.append(tokens, counts)
        for text, new, count in zip(self.texts, tokens.tolist(), counts.tolist(), strict=True):
            text += new[:count]
        self.longest = max(map(len, self.texts))


def _laid_out(rows: list[list[int]], width: int) -> tuple[Tensor, Tensor]:
    """[B, width] int64 tokens, left-aligned, and their [B, width] bool mask."""
    longest = max(map(len, rows))
    tokens = pad(
        torch.tensor([its + [0] * (longest - len(its)) for its in rows], dtype=torch.int64), (0, width - longest)
    )
    return tokens, torch.arange(width) < torch.tensor([[len(its)] for its in rows])


def put(items: list[T], rows: list[int], new: Sequence[T]) -> None:
    """Replace the items of rows by new ones, in place."""
    for row, item in zip(rows, new, strict=True):
        items[row] = item


def power_of_two(number: int) -> int:
    """Smallest power of two >= number.

    Rounding sizes up keeps the number of different sizes, and so of compiled graphs, small.
    """
    return 1 << (number - 1).bit_length()


def source_width(longest: int, least: int = LEAST_SOURCE) -> int:
    """Width of a buffer for sources of at most `longest` tokens."""
    return max(least, power_of_two(longest))


class FollowsText(ABC):
    """Structure that grows with a row's text; its length is the number of the text's tokens."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def append(self, token: int) -> None:
        """Add the next token."""

    def extend(self, tokens: list[int]) -> None:
        """Add the next tokens."""
        for token in tokens:
            self.append(token)


def catch_up(growing: Sequence[FollowsText], sequences: Sequences) -> None:
    """Append to each structure the tokens that its row has committed since the last call."""
    for each, text in zip(growing, sequences.texts, strict=True):
        if new := text[len(each) :]:
            each.extend(new)
