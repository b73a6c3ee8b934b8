"""Attention masks of a pass over cache slots: causal or tree, full, sliding-window or chunked, by position.

B rows, M tokens read, W slots seen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import pad
from transformers import PretrainedConfig

from framework.models.attention import as_scores

T = TypeVar("T")
SeesSlot = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether a token sees a slot: a bool from row, head, token and slot, each a number in a tensor."""

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"  # kinds of layers in `layer_types`
SPAN_SIZES = ("sliding_window", "attention_chunk_size")  # config keys with the span of the last two kinds
BLOCK = 128  # tokens, and slots, in a block of a block mask: PyTorch's own size


@dataclass(frozen=True)
class Span:
    """Positions that a kind of layer attends to: all up to the query's, the last `window`, or those of its `chunk`."""

    window: int | None = None
    chunk: int | None = None

    @property
    def size(self) -> int | None:
        """Most positions that a query sees, its own included; None: all up to its own."""
        return self.window or self.chunk

    def first(self, queries: Tensor) -> Tensor | None:
        """First position that each query sees, from positions [B, M] int64; may be negative; None: always 0."""
        if self.window:
            return queries - (self.window - 1)
        if self.chunk:
            return queries // self.chunk * self.chunk
        return None


@dataclass(frozen=True)
class Branches:
    """Tokens of a tree of R rows, pending and its nodes, in consecutive slots.

    Attributes:
        start: [B] int64: slot of row 0.
        positions: [B, M] int64: positions of the tokens read.
        sees: [B, M, R] bool: rows that each token read sees.
        depth: [B, R] int64: depths of all rows.
    """

    start: Tensor
    positions: Tensor
    sees: Tensor
    depth: Tensor

    def since(self, first: Tensor) -> SeesSlot:
        """Which slots a token sees: its ancestors', and all before the tree, from position first [B, M] on."""
        start = self.start
        recent = self.start.view(-1, 1, 1) + self.depth.unsqueeze(1) >= first.unsqueeze(2)
        rows = pad(self.sees & recent, (0, 1))  # the last entry is for all slots after the tree
        last = torch.full_like(start, self.sees.shape[2])  # as a tensor: kernels on a GPU take no varying numbers

        def sees(row: Tensor, head: Tensor, token: Tensor, slot: Tensor) -> Tensor:
            # Slots before the tree are seen like its row 0.
            place = torch.minimum((slot - start[row]).clamp(min=0), last[row])
            return (slot >= first[row, token]) & rows[row, token, place]

        return sees


def _up_to(slots: Tensor, first: Tensor) -> SeesSlot:
    """Which slots a token sees: those from first to its own; both [B, M] int64."""

    def sees(row: Tensor, head: Tensor, token: Tensor, slot: Tensor) -> Tensor:
        return (slot >= first[row, token]) & (slot <= slots[row, token])

    return sees


def _block_mask(sees: SeesSlot, first: Tensor, last: Tensor, whole: Tensor, num_slots: int) -> BlockMask:
    """BlockMask for tokens that see no slot before `first` or after `last`, and all from `first` to `whole`.

    Args:
        sees: whether a token sees a slot.
        first: [B, M] int64, like `last` and `whole`.
        num_slots: W; tokens that nobody needs may be beyond.
    """
    num_blocks = (num_slots + BLOCK - 1) // BLOCK
    first, last, whole = (each.clamp(0, num_slots - 1) for each in (first, last, whole))
    # Of every block of tokens, [B, blocks of tokens]: it reads the blocks of slots from `begin` up to `end`, those from
    # `begin_whole` up to `end_whole` without a mask.
    begin = _of_blocks(torch.Tensor.amin, first) // BLOCK
    end = _of_blocks(torch.Tensor.amax, last) // BLOCK + 1
    begin_whole = (_of_blocks(torch.Tensor.amax, first) + BLOCK - 1) // BLOCK
    end_whole = torch.maximum(begin_whole, (_of_blocks(torch.Tensor.amin, whole) + 1) // BLOCK)
    num_whole = end_whole - begin_whole
    place = torch.arange(num_blocks, device=last.device)
    left_out = torch.where(place < (begin_whole - begin).unsqueeze(2), 0, num_whole.unsqueeze(2))
    masked, unmasked = begin.unsqueeze(2) + place + left_out, begin_whole.unsqueeze(2) + place
    return BlockMask.from_kv_blocks(
        (end - begin - num_whole).int().unsqueeze(1),
        masked.clamp(max=num_blocks - 1).int().unsqueeze(1),
        num_whole.int().unsqueeze(1),
        unmasked.clamp(max=num_blocks - 1).int().unsqueeze(1),
        BLOCK_SIZE=BLOCK,
        mask_mod=sees,
        seq_lengths=(last.shape[1], num_slots),
        compute_q_blocks=False,  # for gradients alone
    )


def _of_blocks(reduce: Callable[[Tensor, int], Tensor], values: Tensor) -> Tensor:
    """[B, blocks of tokens]: values [B, M] reduced over every block of tokens."""
    return torch.stack([reduce(tokens, 1) for tokens in values.split(BLOCK, 1)], 1)


class AttentionMasks:
    """Attention masks in the form that a model takes: one for all layers, or a dict from kind of layer to mask.

    Models whose config lists several kinds in `layer_types` take a dict, like the one from transformers' `generate`.

    Attributes:
        spans: the span of each kind of layer.
        shortest: size of the shortest span; None: all layers see all earlier positions.
    """

    def __init__(self, config: PretrainedConfig):
        """
        Args:
            config: config of the decoder.
        """
        window, chunk = (getattr(config, name, None) for name in SPAN_SIZES)
        by_kind = {FULL: Span(), SLIDING: Span(window=window), CHUNKED: Span(chunk=chunk)}
        kinds = layer_kinds(config)
        if not kinds:  # all layers are of one kind, which follows from the sizes
            kinds = {SLIDING if window else CHUNKED if chunk else FULL}
        # Layers with attention and a recurrent state are of another kind, and see everything.
        self.spans = {kind: by_kind[kind] for kind in sorted(kinds & by_kind.keys() or {FULL})}
        self._unmasked = kinds - by_kind.keys()
        self.shortest = min((span.size for span in self.spans.values() if span.size), default=None)

    def of(self, sees: Tensor, queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Tensor | dict[str, Tensor | None]:
        """Additive masks [B, 1, M, W]: 0 where a query attends, the lowest number elsewhere.

        Args:
            sees: [B, M, W] bool: slots that hold the token itself or an earlier one on its path.
            queries: [B, M] int64 positions of the tokens read.
            keys: [1 or B, W] int64 positions of the tokens in the slots.
            dtype: dtype of the scores.
        """

        def of_span(span: Span) -> Tensor:
            first = span.first(queries)
            return additive(sees if first is None else sees & (keys.unsqueeze(1) >= first.unsqueeze(2)), dtype)

        return self._of_every_kind(of_span)

    def in_blocks(
        self, slots: Tensor, visible: int, branches: "Branches | None" = None
    ) -> BlockMask | dict[str, BlockMask | None]:
        """Masks for flex attention: functions of slots, and the blocks of slots to read.

        Args:
            slots: [B, M] int64: slots of the tokens read.
            visible: W.
            branches: structure of the tokens if they are a tree; None: each token's slot is its position.
        """

        def of_span(span: Span) -> BlockMask:
            first = span.first(slots if branches is None else branches.positions)
            first = torch.zeros_like(slots) if first is None else first
            if branches is None:
                return _block_mask(_up_to(slots, first), first, slots, slots, visible)
            whole = branches.start.unsqueeze(1).expand_as(slots)
            return _block_mask(branches.since(first), first, slots, whole, visible)

        return self._of_every_kind(of_span)

    def _of_every_kind(self, mask_of: Callable[[Span], T]) -> T | dict[str, T | None]:
        masks = {span: mask_of(span) for span in dict.fromkeys(self.spans.values())}
        if len(masks) == 1:
            return next(iter(masks.values()))
        return dict.fromkeys(self._unmasked) | {kind: masks[span] for kind, span in self.spans.items()}


def layer_kinds(config: PretrainedConfig) -> set[str]:
    """Kinds of layers in the `layer_types` of a config; empty if it has none."""
    return set(getattr(config, "layer_types", None) or [])


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, M, W]: additive mask from a mask [B, M, W] bool."""
    # With a bool mask, eager attention is silently wrong, and sdpa converts it in every layer.
    return as_scores(seen, dtype).unsqueeze(1)
