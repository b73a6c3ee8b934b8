"""Models that cannot be served exactly, as far as the config shows it."""

import inspect
from typing import Any

from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from framework.models.attention import IMPLEMENTATIONS
from framework.models.attention_masks import CHUNKED, FULL, SLIDING, layer_kinds
from framework.models.encoder_decoder import decoder_start
from framework.models.recurrent_states import BOTH, NOTHING, ONLY_STATES, has_recurrent_layers, only_recurrent_layers

DYNAMIC = "dynamic"  # rotary positions whose frequencies grow with texts beyond the positions of the config
T5_POSITIONS = 512  # training length of T5 (Raffel et al., 2020), which configs of its family may omit


def why_unsupported(model: PreTrainedModel, context: int | None) -> str | None:
    """Reason why a model cannot be served exactly within `context` positions (None: its own limit); None if it can."""
    config: PretrainedConfig = model.config.get_text_config()
    if model._is_stateful and not has_recurrent_layers(config):
        return "it keeps a recurrent state outside of transformers' cache layers, which cannot be rolled back"
    if model.config.is_encoder_decoder and not decoder_start(model):
        return "it has an encoder, but names no token that texts begin with; set decoder_start_token_id in its config"
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if not takes_positions and not model.config.is_encoder_decoder and not only_recurrent_layers(config):
        return "it takes no position_ids, so that rows of different lengths cannot be given their positions"
    if config._attn_implementation not in IMPLEMENTATIONS:
        return f"target.attention is {config._attn_implementation!r}; allowed: {', '.join(IMPLEMENTATIONS)}"
    limit = longest_context(config) or context
    if limit is None:
        return "its config states no context length; set target.context"
    context = limit if context is None else context
    if not 1 <= context <= limit:
        return f"target.context is {context}; allowed: 1 to {limit}"
    if other := layer_kinds(config) - {FULL, SLIDING, CHUNKED, *ONLY_STATES, BOTH, *NOTHING}:
        return f"its layers of type {', '.join(sorted(other))} cannot be rolled back"
    if getattr(config, "alibi", False):
        return "it takes distances (ALiBi) from a padding mask, which cannot say where tokens of a tree stand"
    if getattr(config, "keep_window_size", None):
        return "its attention keeps some of all slots that a pass sees, and slots beyond a row's end are among them"
    if "local" in getattr(config, "attention_layers", ()):
        return "its local layers cut their masks by the number of keys, not by positions"
    scale_changes = getattr(config, "floor_scale", None) if getattr(config, "attn_temperature_tuning", False) else None
    if scale_changes is not None and context >= scale_changes:
        return (
            f"its attention temperature changes from position {scale_changes - 1} on, counted from cache slots; set "
            f"target.context={scale_changes - 1}"
        )
    for rope in _ropes(config):
        original = rope.get("original_max_position_embeddings", context)
        if rope.get("rope_type") == "longrope" and original < context:
            return f"its rotary positions change beyond {original}; set target.context={original}"
    return None


def longest_context(config: PretrainedConfig) -> int | None:
    """Most positions of a model according to its config; None if it states none."""
    # T5 has relative distances only; its n_positions is the training length.
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return own or (T5_POSITIONS if hasattr(config, "relative_attention_num_buckets") else None)


def _ropes(config: PretrainedConfig) -> list[dict]:
    """Settings of rotary positions: one dict for all layers, or one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [each for each in rope.values() if isinstance(each, dict)] or [rope]


def has_dynamic_frequencies(model: nn.Module) -> bool:
    """Whether frequencies of rotary positions depend on the longest text of a pass."""
    return any(DYNAMIC in _rope_types(module).values() for module in model.modules())


def keep_frequencies(model: PreTrainedModel) -> None:
    """Let dynamic rotary positions of a decoder keep their frequencies, which are the same within its context.

    Beyond it the model then differs from transformers' own. An encoder is left as it is, since its sources may be
    longer than the context.
    """
    for module in model.get_decoder().modules():
        types = _rope_types(module)
        if DYNAMIC in types.values():
            kept = {key: "default" if each == DYNAMIC else each for key, each in types.items()}
            module.rope_type = kept if isinstance(module.rope_type, dict) else kept[None]


def _rope_types(module: nn.Module) -> dict[Any, str]:
    """Types of a module's rotary positions by kind of layer; with the key None if all layers have the same type."""
    types: Any = getattr(module, "rope_type", None) or {}
    return types if isinstance(types, dict) else {None: types}
