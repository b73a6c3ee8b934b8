"""ConditionedDecoder: the decoder of an encoder-decoder model, given one source per row. CachedLM runs it.

Its passes are those of the model in transformers, but for two things. The sources are read once, and so are the mask,
keys and values that cross-attention makes of them. And what tells a decoder where its tokens stand, the same place for
all rows in transformers, is told in a twin of the model for each row: T5's relative distances (Raffel et al., 2020),
and tables of positions like BART's (Lewis et al., 2020) and Marian's (Junczys-Dowmunt et al., 2018).

B rows, M tokens read, W slots seen, S tokens of a source.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutput

from framework.cache_slots import additive
from framework.twins import replaced


class ConditionedDecoder:
    """Called like a decoder-only model; `read` comes first."""

    def __init__(self, model: PreTrainedModel, self_attention: Cache):
        """
        Args:
            model: never edited.
            self_attention: keeps what the decoder reads.

        Raises:
            ValueError: nothing in the decoder is known to tell positions apart.
        """
        self._places = _Places()
        self._sources = _Sources(len(self_attention.layers))
        self._cache = EncoderDecoderCache(self_attention, self._sources.cache)
        self._model = _with_places(model, self._places)

    def sharing_sources(self, model: PreTrainedModel) -> "ConditionedDecoder":
        """The same sources and slots, read by another module that borrows this one's layers."""
        shared = copy.copy(self)
        shared._model = _with_places(model, self._places)
        return shared

    def read(self, source: Tensor, mask: Tensor) -> None:
        """Encode the sources.

        Args:
            source: [B, S] int64.
            mask: [B, S] bool: which of them are tokens.
        """
        encoder = self._model.get_encoder()
        with torch.no_grad():
            hidden = encoder(input_ids=source, attention_mask=mask.long()).last_hidden_state
        self._sources.begin(hidden, mask)
        self._cache.is_updated = dict.fromkeys(range(len(self._sources.cache.layers)), False)

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor,
        key_positions: Tensor,
        **others: Any,
    ) -> Any:
        """A pass of the decoder.

        Args:
            input_ids: [B, M] int64.
            attention_mask: [B, 1, M, W], added to the scores, or None.
            position_ids: [B, M] int64.
            key_positions: [1 or B, W] int64: positions of what lies in the slots seen.
            others: not needed.

        Returns:
            an object with logits [B, M, V].
        """
        self._places.queries, self._places.keys = position_ids, key_positions
        return self._model(
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            encoder_outputs=BaseModelOutput(last_hidden_state=self._sources.hidden),
            attention_mask=self._sources.mask.expand(-1, -1, input_ids.shape[1], -1),
            past_key_values=self._cache,
            use_cache=True,
        )


def decoder_start(model: PreTrainedModel) -> list[int]:
    """The tokens that a text begins with: the start token, and a language's where the model is set to one."""
    settings = [model.generation_config, model.config.get_text_config()]
    first, forced = (
        next((value for each in settings if (value := getattr(each, key, None)) is not None), None)
        for key in ("decoder_start_token_id", "forced_bos_token_id")
    )
    return [token for token in (first, forced) if token is not None]


def num_decoder_layers(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    for key in ("num_decoder_layers", "decoder_layers"):
        if getattr(config, key, None) is not None:
            return int(getattr(config, key))
    return int(config.num_hidden_layers)


class _Places:
    """Where the tokens of the pass under way stand: queries [B, M] int64, and keys [1 or B, W] int64."""

    queries: Tensor
    keys: Tensor


def _with_places(model: PreTrainedModel, places: _Places) -> PreTrainedModel:
    """A twin of a model whose decoder is told where each row's tokens stand.

    Raises:
        ValueError: nothing in its decoder is known to tell positions apart.
    """
    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    found = False
    for name, module in decoder.named_modules():
        told = _told(name, module, places)
        if told is not None:
            model = replaced(model, [*prefix.split("."), *name.split(".")], told)
            found = True
    if not found:
        raise ValueError("its decoder cannot be told where each row stands; T5-, BART- and Marian-like ones can")
    return model


def _told(name: str, module: nn.Module, places: _Places) -> nn.Module | None:
    """What stands in a twin for a module that tells positions apart; None for any other module."""
    if getattr(module, "has_relative_attention_bias", False):
        twin: Any = copy.copy(module)
        twin.compute_bias = _RelativeBias(module, places)
        return twin
    if name.endswith("embed_positions") and isinstance(module, nn.Embedding):
        return _PositionTable(module, places)
    return None


class _RelativeBias:
    """T5's bias by distance, for rows that stand at different places."""

    def __init__(self, attention: Any, places: _Places):
        self._attention, self._places = attention, places

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """[B, heads, M, W]."""
        attention, places = self._attention, self._places
        buckets = attention._relative_position_bucket(
            places.keys.unsqueeze(1) - places.queries.unsqueeze(2),
            bidirectional=False,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=attention.relative_attention_max_distance,
        )
        bias: Tensor = attention.relative_attention_bias(buckets)
        return bias.permute(0, 3, 1, 2)


class _PositionTable(nn.Module):
    """A table of positions, looked up at each row's own."""

    def __init__(self, table: nn.Embedding, places: _Places):
        super().__init__()
        self.table, self._places = table, places
        self._offset = int(getattr(table, "offset", 0))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """[B, M, H]."""
        return embedding(self._places.queries + self._offset, self.table.weight)


class _Sources:
    """What was read of the sources: hidden [B, S, H], mask [B, 1, 1, S] that is
    added to scores, and each layer's keys and values of them."""

    hidden: Tensor
    mask: Tensor

    def __init__(self, num_layers: int):
        self.cache = Cache(layers=[_SourceLayer() for _ in range(num_layers)])

    def begin(self, hidden: Tensor, mask: Tensor) -> None:
        # Added to scores, as sums of attention want it; of a [B, S] mask transformers makes another one in every pass.
        self.hidden, self.mask = hidden, additive(mask.unsqueeze(1), hidden.dtype)
        for layer in self.cache.layers:
            layer.keys = layer.values = None
            layer.is_initialized = False


class _SourceLayer(CacheLayerMixin):
    """Keys and values of the sources in one layer, [B, heads, S, dim]: written once."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        with torch.inference_mode(False):  # ordinary tensors, which compiled programs read, too
            self.keys, self.values = key_states.clone(), value_states.clone()
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.keys.shape[2] if self.is_initialized else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1
