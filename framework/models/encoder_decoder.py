"""ConditionedDecoder: the decoder of an encoder-decoder model, with one source per row. CachedLM runs it.

Its passes differ from those of transformers in two ways. First, the encoder output is computed once, and so are the
mask, keys and values of cross-attention. Second, every row has its own positions. Decoders like T5Gemma's take
positions as an argument. In others, the module that counts the same positions for all rows is replaced by a copy that
takes them: T5's relative distances (Raffel et al., 2020), position tables like those of BART (Lewis et al., 2020) and
Marian (Junczys-Dowmunt et al., 2018), and sinusoids like those of M2M-100 (Fan et al., 2021).

B rows, M tokens read, W slots seen, S tokens in the buffer of sources, of which the encoder reads the first R.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_outputs import BaseModelOutput

from framework.core.cached_property import cached_property
from framework.core.fixed_buffer import FixedBuffer, FixedBuffers
from framework.kernels.compiled_graphs import Compiled
from framework.models.attention_masks import additive
from framework.models.module_clone import clone_replacing


class ConditionedDecoder:
    """Decoder with the call interface of a decoder-only model; call `read` first."""

    def __init__(self, model: PreTrainedModel, self_attention: Cache):
        """
        Args:
            model: the encoder-decoder model; never modified.
            self_attention: cache of the decoder's self-attention.

        Raises:
            ValueError: the decoder has no known module for positions.
        """
        self._places = _Places()
        self._sources = _Sources(len(self_attention.layers))
        self._cache = EncoderDecoderCache(self_attention, self._sources.cache)
        self._takes_positions = _takes_positions(model)
        self._model = _with_places(model, self._places)

    def sharing_sources(self, model: PreTrainedModel) -> "ConditionedDecoder":
        """Decoder of another module that borrows this one's layers, with the same sources and slots."""
        shared = copy.copy(self)
        shared._model = _with_places(model, self._places)
        return shared

    def read(self, source: Tensor, mask: Tensor, *, compiled: bool = False) -> None:
        """Encode the sources.

        Args:
            source: [B, R] int64.
            mask: [B, S] bool: which entries of the sources are tokens, none of them beyond R.
            compiled: whether to encode in a compiled graph.
        """
        mask_read = mask[:, : source.shape[1]]
        outputs = self._encoder_graph(source.shape, source, mask_read) if compiled else self._encode(source, mask_read)
        self._sources.begin(outputs, mask)
        self._cache.is_updated = dict.fromkeys(range(len(self._sources.cache.layers)), False)

    @property
    def _hidden(self) -> Tensor:
        """[B, R, H] output of the encoder; once cross-attention has its keys and values, a [B, S, H] stand-in.

        No layer then reads it, and graphs depend on S alone.
        """
        hidden = self._sources.hidden
        if not self._cache.is_updated[0]:
            return hidden
        return hidden[:, :1, :1].expand(-1, self._sources.mask.shape[3], hidden.shape[2])

    @cached_property
    def _encoder_graph(self) -> Compiled:
        return Compiled(self._encode, self._model.device, name="an encoder pass")

    def _encode(self, source: Tensor, mask: Tensor) -> BaseModelOutput:
        with torch.no_grad():
            outputs: BaseModelOutput = self._model.get_encoder()(input_ids=source, attention_mask=mask.long())
        return outputs

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor,
        key_positions: Tensor,
        **others: Any,
    ) -> Any:
        """Run one pass of the decoder.

        Args:
            input_ids: [B, M] int64.
            attention_mask: [B, 1, M, W], added to the scores, or None.
            position_ids: [B, M] int64.
            key_positions: [1 or B, W] int64: positions of the tokens in the slots seen.
            others: ignored.

        Returns:
            the model's output, with logits [B, M, V].
        """
        self._places.queries, self._places.keys = position_ids, key_positions
        return self._model(
            decoder_input_ids=input_ids,
            decoder_attention_mask=attention_mask,
            **({"decoder_position_ids": position_ids} if self._takes_positions else {}),
            encoder_outputs=self._sources.kind(last_hidden_state=self._hidden),
            attention_mask=self._sources.mask.expand(-1, -1, input_ids.shape[1], -1),
            past_key_values=self._cache,
            use_cache=True,
        )


def decoder_start(model: PreTrainedModel) -> list[int]:
    """First tokens of every text: decoder_start_token_id, then forced_bos_token_id (the language), each if set."""
    settings = [model.generation_config, model.config.get_text_config()]
    first, forced = (
        next((value for each in settings if (value := getattr(each, key, None)) is not None), None)
        for key in ("decoder_start_token_id", "forced_bos_token_id")
    )
    return [token for token in (first, forced) if token is not None]


def find_blocks(
    model: PreTrainedModel, fits: Callable[[nn.Module], bool] = lambda block: True
) -> tuple[list[str], nn.ModuleList] | None:
    """Attribute path of a decoder's list of layers, and the list.

    Args:
        model: the model of the decoder.
        fits: condition on every layer.

    Returns:
        None if there is no such list, as long as the config says.
    """
    depth, decoder = num_decoder_layers(model), model.get_decoder()
    inside = "".join(f"{name}." for name, module in model.named_modules() if module is decoder and name)
    for name, module in decoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == depth and all(map(fits, module)):
            return (inside + name).split("."), module
    return None


def num_decoder_layers(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    for key in ("num_decoder_layers", "decoder_layers"):
        if getattr(config, key, None) is not None:
            return int(getattr(config, key))
    return int(config.num_hidden_layers)


class _Places:
    """Positions of the tokens in the current pass: queries [B, M] int64, and keys [1 or B, W] int64."""

    queries: Tensor
    keys: Tensor


def _with_places(model: PreTrainedModel, places: _Places) -> PreTrainedModel:
    """Clone of a model whose decoder uses the positions of every row; the model itself if it takes them.

    Raises:
        ValueError: the decoder has no known module for positions.
    """
    if _takes_positions(model):
        return model
    decoder = model.get_decoder()
    prefix = next(name for name, module in model.named_modules() if module is decoder)
    found = False
    for name, module in decoder.named_modules():
        positioned = _positioned(name, module, places)
        if positioned is not None:
            model = clone_replacing(model, [*prefix.split("."), *name.split(".")], positioned)
            found = True
    if not found:
        raise ValueError(
            f"{type(model).__name__} cannot be served: its decoder takes no positions for each row; supported: "
            "decoders like those of T5, BART, Marian, M2M-100 and T5Gemma"
        )
    return model


def _takes_positions(model: PreTrainedModel) -> bool:
    return "decoder_position_ids" in inspect.signature(type(model).forward).parameters


def _positioned(name: str, module: nn.Module, places: _Places) -> nn.Module | None:
    """Replacement of a module for positions; None for any other module."""
    if getattr(module, "has_relative_attention_bias", False):
        clone: Any = copy.copy(module)
        clone.compute_bias = _RelativeBias(module, places)
        return clone
    if name.endswith("embed_positions"):
        if isinstance(module, nn.Embedding):
            return _PositionTable(module, places)
        if isinstance(getattr(module, "weights", None), Tensor) and hasattr(module, "padding_idx"):
            return _Sinusoids(module, places)
    return None


class _RelativeBias:
    """T5's relative position bias, for rows at different positions."""

    def __init__(self, attention: Any, places: _Places):
        self._attention, self._places = attention, places
        settings = {
            "bidirectional": False,
            "num_buckets": attention.relative_attention_num_buckets,
            "max_distance": attention.relative_attention_max_distance,
        }
        known = inspect.signature(attention._relative_position_bucket).parameters
        self._settings = settings if "bidirectional" in known else {}  # UMT5's attention uses its own

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """[B, heads, M, W] bias."""
        attention, places = self._attention, self._places
        distances = places.keys.unsqueeze(1) - places.queries.unsqueeze(2)
        buckets = attention._relative_position_bucket(distances, **self._settings)
        bias: Tensor = attention.relative_attention_bias(buckets)
        return bias.permute(0, 3, 1, 2)


class _PositionTable(nn.Module):
    """Table of position embeddings, looked up at each row's own positions."""

    def __init__(self, table: nn.Embedding, places: _Places):
        super().__init__()
        self.table, self._places = table, places
        self._offset = int(getattr(table, "offset", 0))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """[B, M, H]."""
        return embedding(self._places.queries + self._offset, self.table.weight)


class _Sinusoids(nn.Module):
    """M2M-100's sinusoids, looked up at each row's own positions; padding tokens have no position."""

    def __init__(self, sinusoids: Any, places: _Places):
        super().__init__()
        self._places, self._padding = places, int(sinusoids.padding_idx)
        # transformers extends its table on demand; this one is built at full size.
        size = sinusoids.num_positions + self._padding + 1
        table = sinusoids.get_embedding(size, sinusoids.embedding_dim, self._padding)
        self.register_buffer("table", table.to(sinusoids.weights), persistent=False)

    def forward(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """[B, M, H]."""
        places = torch.where(input_ids == self._padding, self._padding, self._places.queries + self._padding + 1)
        return cast(Tensor, self.table)[places]


class _Sources:
    """Encoded sources.

    Attributes:
        kind: class of the encoder's output; some decoders read other attributes than its hidden states.
        hidden: [B, R, H] hidden states of the encoder.
        mask: [B, 1, 1, S], added to scores.
        cache: keys and values of cross-attention, layer by layer.
    """

    kind: type[BaseModelOutput]
    hidden: Tensor
    mask: Tensor

    def __init__(self, num_layers: int):
        self._buffers = FixedBuffers()
        self.cache = Cache(layers=[_SourceLayer(self) for _ in range(num_layers)])

    def begin(self, outputs: BaseModelOutput, mask: Tensor) -> None:
        hidden = outputs.last_hidden_state
        assert hidden is not None
        self.kind = type(outputs)
        # In additive form, as the explicit sums of attention need it; transformers would convert [B, S] in every pass.
        self.hidden, self.mask = hidden, additive(mask.unsqueeze(1), hidden.dtype)
        self._buffers.hold(self)
        for layer in self.cache.layers:
            layer.is_initialized = False


class _SourceLayer(CacheLayerMixin):
    """Keys and values of cross-attention in one layer, [B, heads, S, dim]; written once per batch of sources."""

    keys: Tensor | None
    values: Tensor | None

    def __init__(self, sources: _Sources):
        super().__init__()
        self._sources = sources
        self._key_buffer, self._value_buffer = FixedBuffer(), FixedBuffer()

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        with torch.inference_mode(False):  # ordinary tensors, because compiled graphs read them, too
            self.keys = self._widened(key_states, self._key_buffer)
            self.values = self._widened(value_states, self._value_buffer)
        self.is_initialized = True

    def _widened(self, states: Tensor, buffer: FixedBuffer) -> Tensor:
        """[B, heads, S, dim]: states [B, heads, R, dim], followed by zeros that the mask hides."""
        num_rows, heads, read, dim = states.shape
        shape = num_rows, heads, self._sources.mask.shape[3], dim
        wide = buffer.zeros(shape, dtype=states.dtype, device=states.device)
        wide[:, :, :read] = states
        return wide

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.keys.shape[2] if self.is_initialized and self.keys is not None else 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length(), 0

    def get_max_length(self) -> int:
        return -1
