"""The slots of a cache: where the pass under way writes, how far it sees, and what each layer keeps there."""

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin


class Slots:
    """The room there is, B rows of `capacity` slots; one for all layers, and for all models that share the cache.

    Attributes:
        cache: what a Hugging Face model takes as past_key_values.
        ids: [capacity] int64: 0, 1, 2, ...
        visible: how many slots the row that sees most may see in the pass under way.
        num_tokens: how many tokens of a row it reads.
        writes: [B * M] int64: where it writes, as an index into the slots of all rows laid end to end.
    """

    num_rows = 0
    capacity = 0
    ids: Tensor
    visible: int
    num_tokens: int
    writes: Tensor

    def __init__(self, num_layers: int):
        self.cache = Cache(layers=[_SlotLayer(self) for _ in range(num_layers)])

    def begin(self, num_rows: int, capacity: int, device: torch.device) -> None:
        """Forget all rows and make room."""
        if (num_rows, capacity) == (self.num_rows, self.capacity):
            # What a failed generation left behind may be a NaN, and a masked NaN is still a NaN.
            with torch.inference_mode():
                self.cache.reset()
            return
        self.num_rows, self.capacity = num_rows, capacity
        self.ids = torch.arange(capacity, device=device)
        self._row_offsets = torch.arange(num_rows, device=device).unsqueeze(1) * capacity
        for layer in self.cache.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False

    def aim(self, slots: Tensor, *, visible: int) -> None:
        """The next pass writes slots [B, M] int64 of every row."""
        self.writes = (self._row_offsets + slots).flatten()
        self.visible, self.num_tokens = visible, slots.shape[1]

    def mask_behind(self, positions: Tensor, visible: int, dtype: torch.dtype) -> Tensor:
        """[B, 1, M, visible]: 0 on slots up to each position [B, M] int64, the lowest number behind it."""
        return additive(self.ids[:visible] <= positions.unsqueeze(2), dtype)

    def tree_mask(self, start: Tensor, sees: Tensor, visible: int, dtype: torch.dtype) -> Tensor:
        """[B, 1, M, visible]: 0 on the slots up to start's and on those of ancestors.

        Args:
            start: [B] int64: slot of row 0, which all rows see.
            sees: [B, M, R] bool: which of the rows 0...R - 1, in the slots from start on, each token sees.
        """
        # Everything up to start is seen like row 0 itself.
        row = (self.ids[:visible] - start.unsqueeze(1)).clamp(min=0)
        within = row < sees.shape[2]
        row = row.clamp(max=sees.shape[2] - 1).unsqueeze(1).expand(-1, sees.shape[1], -1)
        return additive(sees.gather(2, row) & within.unsqueeze(1), dtype)

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy slots to other slots of the same row, in all layers; both [B, M] int64."""
        source, to = (self._row_offsets + source).flatten(), (self._row_offsets + to).flatten()
        with torch.inference_mode():
            for layer in self.cache.layers:
                layer.move(source, to)


def additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, M, W] from [B, M, W] bool."""
    # Additive, because eager attention is silently wrong with a bool mask and sdpa converts one in every layer.
    mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min).unsqueeze(1)


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [B * capacity, heads, dim]: a slot is one contiguous row to copy into.

    They are kept as they are written, all rows laid end to end: a program that writes a view of what it is given, and
    that twice, as a tree's moves or several passes of a drafter do, copies all of it before and after.
    """

    def __init__(self, slots: Slots):
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        rows, capacity = self.slots.num_rows, self.slots.capacity
        with torch.inference_mode(False):  # ordinary tensors, which compiled programs write, too
            self.keys, self.values = (
                torch.zeros(rows * capacity, s.shape[1], s.shape[3], dtype=s.dtype, device=s.device)
                for s in (key_states, value_states)
            )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        slots = self.slots
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        writes = slots.writes.to(key_states.device)  # layers may lie on other devices than tokens
        for kept, states in ((self.keys, key_states), (self.values, value_states)):
            kept.index_copy_(0, writes, states.transpose(1, 2).flatten(0, 1))
        return self._seen(self.keys), self._seen(self.values)

    def _seen(self, kept: Tensor) -> Tensor:
        """[B, heads, visible, dim]"""
        return kept.unflatten(0, (self.slots.num_rows, -1))[:, : self.slots.visible].transpose(1, 2)

    def move(self, source: Tensor, to: Tensor) -> None:
        """Copy slots; both are int64 indices into all rows laid end to end."""
        source, to = source.to(self.keys.device), to.to(self.keys.device)
        for kept in (self.keys, self.values):
            kept.index_copy_(0, to, kept.index_select(0, source))

    # Asked only when a pass comes without a mask: a single token of a single row, or rows from their beginning.
    def get_seq_length(self) -> int:
        return self.slots.visible - self.slots.num_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.visible, 0

    def get_max_length(self) -> int:
        return self.slots.capacity
