"""Which models cannot be served exactly, as far as their config says so."""

import inspect

from transformers import PretrainedConfig, PreTrainedModel

from framework.conditioned_decoder import decoder_start

# Flash attention takes no mask of ours, and flex attention no dense one.
ATTENTIONS = ("fused", "sdpa", "eager")
T5_POSITIONS = 512  # what T5 was trained with (Raffel et al., 2020); its family's configs may not say so


def refusal(model: PreTrainedModel, context: int | None) -> str | None:
    """Why a model cannot be served exactly within `context` positions (None: its own limit), or None if it can."""
    config: PretrainedConfig = model.config.get_text_config()
    if model._is_stateful:
        return "it keeps a recurrent state, which cannot be rolled back"
    if model.config.is_encoder_decoder and not decoder_start(model):
        return "it has an encoder, and does not say what its texts begin with; set decoder_start_token_id in its config"
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    if not takes_positions and not model.config.is_encoder_decoder:
        return "it takes no position_ids, so that rows of different lengths cannot be told where they are"
    if config._attn_implementation not in ATTENTIONS:
        return f"target.attention is {config._attn_implementation!r}; allowed: {', '.join(ATTENTIONS)}"
    limit = longest_context(config) or context
    if limit is None:
        return "it does not say how long its context is; set target.context"
    context = limit if context is None else context
    if not 1 <= context <= limit:
        return f"target.context is {context}; allowed: 1 to {limit}"
    kinds = set(getattr(config, "layer_types", None) or [])
    if other := kinds - {"full_attention", "sliding_attention"}:
        return f"its layers of type {', '.join(sorted(other))} cannot be rolled back"
    window = getattr(config, "sliding_window", None) or getattr(config, "window_size", None)
    if window and window < context and kinds != {"full_attention"}:
        return f"its sliding window of {window} is smaller than the context of {context}; set target.context={window}"
    for rope in _ropes(config):
        original = rope.get("original_max_position_embeddings", context)
        if rope.get("rope_type") == "longrope" and original < context:
            return f"its rotary positions change beyond {original}; set target.context={original}"
    return None


def longest_context(config: PretrainedConfig) -> int | None:
    """Most positions a model has by its own account; None if it gives none."""
    # T5 knows distances only, and calls what it was trained with n_positions.
    own = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    return own or (T5_POSITIONS if hasattr(config, "relative_attention_num_buckets") else None)


def _ropes(config: PretrainedConfig) -> list[dict]:
    """The settings of rotary positions: one for all layers, or one per kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [each for each in rope.values() if isinstance(each, dict)] or [rope]
