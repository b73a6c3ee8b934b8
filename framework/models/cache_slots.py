"""Slots of a KV cache: the slots that the current pass writes and sees, and the storage of each layer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import (
    CacheLayerMixin,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from framework.core.fixed_buffer import FixedBuffer
from framework.models.recurrent_states import BOTH, ONLY_STATES


class Slots:
    """KV cache of B rows with `capacity` slots each; one for all layers, and for all models that share the cache.

    Attributes:
        context: most positions that a row may fill, or None; slots beyond hold nodes that are never committed.
        cache: past_key_values of a Hugging Face model.
        ids: [capacity] int64: 0, 1, 2, ...
        visible: slots that the current pass may attend to, the most over all rows.
        num_tokens: tokens per row that the current pass reads.
        writes: [B * M] int64: slots that the current pass writes, as indices into all rows laid end to end; None
            between passes.
        rows: [R] int64: rows that the current pass reads; None: all.
        are_made: whether compiled prefills may write them; False once the number of rows or slots changes.
    """

    num_rows = 0
    capacity = 0
    ids: Tensor
    visible = 0
    num_tokens = 0
    writes: Tensor | None = None
    rows: Tensor | None = None
    are_made = False

    def __init__(self, num_layers: int, *, context: int | None = None, kinds: Sequence[str] | None = None):
        """
        Args:
            num_layers: number of layers, if kinds is None.
            context: most positions that a row may fill; None: no limit.
            kinds: cache content of each layer (`recurrent_states.cache_kinds`); None: keys and values in all layers.
        """
        self.context = context
        self.cache = Cache(layers=[self._layer(kind) for kind in kinds or ["full_attention"] * num_layers])

    def _layer(self, kind: str) -> Any:
        if kind in ONLY_STATES:
            return LinearAttentionLayer()
        if kind == "dummy":
            from transformers.cache_utils import DummyLayer  # transformers 5.17 has neither it nor models that need it

            return DummyLayer()
        return _SlotAndStateLayer(self) if kind == BOTH else _SlotLayer(self)

    def begin(self, num_rows: int, capacity: int, device: torch.device) -> None:
        """Clear all rows and make room for num_rows rows of `capacity` slots."""
        if (num_rows, capacity) == (self.num_rows, self.capacity):
            # A failed generation may have left NaN behind, and a masked NaN is still a NaN.
            with torch.inference_mode():
                self.cache.reset()
            return
        self.num_rows, self.capacity, self.are_made = num_rows, capacity, False
        self.ids = torch.arange(capacity, device=device)
        self._row_offsets = torch.arange(num_rows, device=device).unsqueeze(1) * capacity
        for layer in self.cache.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    @contextmanager
    def only(self, rows: Tensor) -> Iterator[None]:
        """Restrict passes in the block to rows [R] int64."""
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    @contextmanager
    def in_pass(self, slots: Tensor, *, visible: int) -> Iterator[None]:
        """Let the pass in the block write slots [B, M] int64, and see the first `visible` ones."""
        offsets = self._row_offsets if self.rows is None else self._row_offsets[self.rows]
        self.writes, self.visible, self.num_tokens = (offsets + slots).flatten(), visible, slots.shape[1]
        try:
            yield
        finally:
            # A compiled round returns what it leaves behind.
            self.writes, self.visible, self.num_tokens = None, 0, 0

    def causal(self, positions: Tensor, visible: int) -> Tensor:
        """[B, M, visible] bool: slots up to each position [B, M] int64."""
        return self.ids[:visible] <= positions.unsqueeze(2)

    def of_tree(self, start: Tensor, sees: Tensor, visible: int) -> Tensor:
        """[B, M, visible] bool: slots that each token of a tree sees, which are those up to start and its ancestors'.

        Args:
            start: [B] int64: slot of row 0, which all rows see.
            sees: [B, M, R] bool: which of the rows 0..R-1, in the slots from start on, each token sees.
            visible: number of slots.
        """
        # Slots before start's are seen exactly like row 0.
        row = (self.ids[:visible] - start.unsqueeze(1)).clamp(min=0)
        within = row < sees.shape[2]
        row = row.clamp(max=sees.shape[2] - 1).unsqueeze(1).expand(-1, sees.shape[1], -1)
        return sees.gather(2, row) & within.unsqueeze(1)

    def positions_of_tree(self, start: Tensor, depth: Tensor, visible: int) -> Tensor:
        """[B, visible] int64: positions of the tokens in all slots; a node's is start plus its depth.

        Args:
            start: [B] int64: slot of row 0.
            depth: [1 or B, R] int64: depths of the rows in the slots from start on.
            visible: number of slots.
        """
        ids = self.ids[:visible]
        row = (ids - start.unsqueeze(1)).clamp(min=0, max=depth.shape[1] - 1)
        after = start.unsqueeze(1) + depth.expand(len(start), -1).gather(1, row)
        return torch.where(ids > start.unsqueeze(1), after, ids)

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy slots to other slots of the same row, in all layers; both [B, M] int64."""
        source, to = (self._row_offsets + source).flatten(), (self._row_offsets + to).flatten()
        with torch.inference_mode():
            for layer in self.cache.layers:
                if layer.keys is not None:  # layers that share another layer's keys and values write none
                    layer.move(source, to)


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [B * capacity, heads, dim]: one contiguous row per slot.

    They are stored in the layout in which they are written, all rows laid end to end. A compiled graph that writes
    twice to a view of its input, as the moves of a tree or several passes of a drafter do, copies the whole input
    before and after.
    """

    def __init__(self, slots: Slots):
        super().__init__()
        self.slots = slots
        self._key_buffer, self._value_buffer = FixedBuffer(), FixedBuffer()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        assert not torch.compiler.is_compiling(), "the pass that makes the cache cannot be compiled"
        size = self.slots.num_rows * self.slots.capacity
        self.keys, self.values = (
            _zeros_in(buffer, (size, states.shape[1], states.shape[3]), states)
            for buffer, states in ((self._key_buffer, key_states), (self._value_buffer, value_states))
        )
        self.is_initialized = True

    def reset(self) -> None:
        if self.is_initialized:
            self.keys, self.values = (
                _zeros_in(buffer, kept.shape, kept)
                for buffer, kept in ((self._key_buffer, self.keys), (self._value_buffer, self.values))
            )

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        slots = self.slots
        if self.keys is None:  # a compiled round would check `is_initialized` of every layer
            self.lazy_initialization(key_states, value_states)
        assert slots.writes is not None, "keys and values are written within a pass"
        writes = slots.writes.to(key_states.device)  # a layer may be on another device than the tokens
        for kept, states in ((self.keys, key_states), (self.values, value_states)):
            kept.index_copy_(0, writes, states.transpose(1, 2).flatten(0, 1))
        return self._seen(self.keys), self._seen(self.values)

    def _seen(self, kept: Tensor) -> Tensor:
        """[B, heads, visible, dim]: the slots that the current pass sees."""
        seen = kept.unflatten(0, (self.slots.num_rows, -1))[:, : self.slots.visible]
        if self.slots.rows is not None:
            seen = seen.index_select(0, self.slots.rows.to(seen.device))
        return seen.transpose(1, 2)

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy slots; source and to are int64 indices into all rows laid end to end."""
        source, to = source.to(self.keys.device), to.to(self.keys.device)
        for kept in (self.keys, self.values):
            kept.index_copy_(0, to, kept.index_select(0, source))

    # Used in passes without a mask (one token of one row, or rows from their beginning), and by layers that count
    # positions beyond a threshold themselves (Llama 4), which no committed token reaches.
    def get_seq_length(self) -> int:
        end = self.slots.visible if self.slots.context is None else min(self.slots.visible, self.slots.context)
        return max(end - self.slots.num_tokens, 0)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.visible, 0

    def get_max_length(self) -> int:
        return self.slots.capacity


class _SlotAndStateLayer(_SlotLayer, LinearAttentionAndFullAttentionLayer):
    """Keys and values in slots, plus the states of a recurrent layer."""

    def __init__(self, slots: Slots):
        LinearAttentionAndFullAttentionLayer.__init__(self)
        self.slots = slots
        self._key_buffer, self._value_buffer = FixedBuffer(), FixedBuffer()

    def lazy_initialization(self, *keys_and_values: Tensor, **states: Any) -> None:
        if states:
            LinearAttentionLayer.lazy_initialization(self, **states)
        else:
            _SlotLayer.lazy_initialization(self, *keys_and_values)


def _zeros_in(buffer: FixedBuffer, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of the dtype and on the device of another tensor; an ordinary tensor, because compiled graphs write it."""
    with torch.inference_mode(False):
        return buffer.zeros(shape, dtype=like.dtype, device=like.device)
