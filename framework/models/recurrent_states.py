"""Snapshots and rollback of recurrent states: saved before a draft, restored to the committed tokens.

In attention, a rejected token has no effect once its slot is overwritten. A recurrent layer mixes it into its state,
so that only a snapshot can undo it. transformers' own cache layers hold the states; this module copies them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin, get_layer_types_and_kwargs

ONLY_STATES = ("linear_attention", "conv")
BOTH = "hybrid"  # a layer with states and with keys and values
NOTHING = ("moe", "mlp")  # layers without a cache


def has_recurrent_layers(config: PretrainedConfig) -> bool:
    """Whether any layer keeps states in transformers' cache."""
    return not {*ONLY_STATES, BOTH}.isdisjoint(getattr(config, "layer_types", None) or [])


def cache_kinds(config: PretrainedConfig) -> list[str] | None:
    """Cache content of each layer, in transformers' terms; None if all layers keep keys and values."""
    return get_layer_types_and_kwargs(config)[0] if has_recurrent_layers(config) else None


def only_recurrent_layers(config: PretrainedConfig) -> bool:
    """Whether no layer has attention."""
    return {*ONLY_STATES, *NOTHING}.issuperset(getattr(config, "layer_types", None) or ["full_attention"])


class RecurrentStates:
    """Recurrent states of all rows. The states of a row have read a prefix of its text.

    Attributes:
        num_read: per row, the number of tokens that its states have read; on the host.
    """

    num_read: list[int]

    def __init__(self, layers: Sequence[LinearAttentionCacheLayerMixin]):
        self._layers = layers
        self._places: list[tuple[dict[int, Any], int]] = [
            (states, index)
            for layer in layers
            for states in (layer.conv_states, layer.recurrent_states)
            for index in states
        ]
        self.begin(0)

    @classmethod
    def of(cls, cache: Cache) -> "RecurrentStates | None":
        """States of a cache's recurrent layers; None if it has no such layers."""
        layers = [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]
        return cls(layers) if layers else None

    def begin(self, num_rows: int) -> None:
        """Clear all states, and set the number of rows."""
        self.num_read = [0] * num_rows
        self._rows: list[int] | None = None  # rows of the current pass; None: all
        self._saved: list[Tensor | None] | None = None
        self._put([None] * len(self._places), begun=False)

    @property
    def is_kept_elsewhere(self) -> bool:
        """Whether tokens were read but no state is here, because the model keeps its states elsewhere."""
        return any(self.num_read) and all(state is None for state in self._taken())

    @property
    def needs_snapshot(self) -> bool:
        """Whether there is no snapshot, and the current pass may read drafted tokens."""
        return self._saved is None and self._rows is None

    def save(self) -> None:
        """Take a snapshot, and start to record the tokens read after it."""
        with torch.inference_mode():
            self._saved = [None if state is None else state.clone() for state in self._taken()]
        self._num_saved = list(self.num_read)
        self._read_since: list[Tensor] = []

    def note(self, tokens: Tensor) -> None:
        """Record that tokens [B, M] int64 are read, in all rows or in those of the current pass."""
        if self._saved is not None and self._rows is None:
            self._read_since.append(tokens)
        for row in range(len(self.num_read)) if self._rows is None else self._rows:
            self.num_read[row] += tokens.shape[1]

    def take_back(self, texts: Sequence[Sequence[int]]) -> None:
        """Restore the snapshot in rows whose tokens read since then differ from their text, and drop the snapshot."""
        if self._saved is None:
            return
        read = torch.cat(self._read_since, 1).tolist() if self._read_since else [[] for _ in texts]
        diverged = [
            row
            for row, (text, first) in enumerate(zip(texts, self._num_saved, strict=True))
            if text[first : first + len(read[row])] != read[row]
        ]
        if diverged:
            with torch.inference_mode():
                for state, saved in zip(self._taken(), self._saved, strict=True):
                    if state is not None and saved is not None:
                        index = torch.tensor(diverged, device=state.device)
                        state.index_copy_(0, index, saved.index_select(0, index))
                    elif state is not None:
                        state.index_fill_(0, torch.tensor(diverged, device=state.device), 0)
        for row in diverged:
            self.num_read[row] = self._num_saved[row]
        self._saved = None

    def unread(self, texts: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
        """Groups of rows with equally many unread tokens, and that number; rows without states form own groups."""
        groups: dict[tuple[int, bool], list[int]] = {}
        for row, (text, num_read) in enumerate(zip(texts, self.num_read, strict=True)):
            if len(text) > num_read:
                groups.setdefault((len(text) - num_read, num_read == 0), []).append(row)
        return [(rows, number) for (number, _), rows in groups.items()]

    @property
    def reads_some_rows(self) -> bool:
        """Whether the current pass reads one group of rows."""
        return self._rows is not None

    @contextmanager
    def only(self, rows: list[int]) -> Iterator[None]:
        """Restrict passes in the block to these rows; either all of them or none have read tokens before."""
        begun, whole = self.num_read[rows[0]] > 0, self._taken()
        part: list[Tensor | None] = [None] * len(whole)
        if begun:
            with torch.inference_mode():
                part = [None if state is None else _rows_of(state, rows) for state in whole]
        self._put(part, begun=begun)
        self._rows = rows
        try:
            yield
        finally:
            self._rows = None
        with torch.inference_mode():
            together = [
                None if new is None else self._merged(old, new, rows)
                for old, new in zip(whole, self._taken(), strict=True)
            ]
        self._put(together, begun=True)

    def _merged(self, old: Tensor | None, new: Tensor, rows: list[int]) -> Tensor:
        if len(rows) == len(self.num_read):
            return new
        if old is None:
            old = new.new_zeros(len(self.num_read), *new.shape[1:])
        return old.index_copy_(0, torch.tensor(rows, device=old.device), new)

    def _taken(self) -> list[Tensor | None]:
        """Current states [B, ...] of all layers; None where a layer has none."""
        return [states[index] for states, index in self._places]

    def _put(self, values: Sequence[Tensor | None], *, begun: bool) -> None:
        for (states, index), value in zip(self._places, values, strict=True):
            states[index] = value
        for layer in self._layers:
            for index in layer.conv_states:
                layer.has_previous_state[index] = begun
                layer.is_conv_states_initialized[index] = layer.conv_states[index] is not None
                layer.is_recurrent_states_initialized[index] = layer.recurrent_states[index] is not None


def _rows_of(state: Tensor, rows: list[int]) -> Tensor:
    return state.index_select(0, torch.tensor(rows, device=state.device))


class WithoutPositions:
    """Model with recurrent layers only, which takes neither positions nor a mask."""

    def __init__(self, model: PreTrainedModel):
        self._model = model

    def __call__(self, *, input_ids: Tensor, past_key_values: object, **unused: object) -> Any:
        return self._model(input_ids=input_ids, cache_params=past_key_values, use_cache=True)
