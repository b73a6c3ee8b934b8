"""Options of a generation_config that a target applies, ignores or refuses.

Every option of transformers' GenerationConfig is in exactly one of these groups.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from transformers import GenerationConfig

from framework.core.logits_processors import PROCESSORS
from framework.core.option_error import OptionError

KINDS = ("model", "ignore")

IN_YAML = {
    "do_sample": "sampling.temperature",
    "temperature": "sampling.temperature",
    "top_k": "sampling.top_k",
    "top_p": "sampling.top_p",
    "min_p": "sampling.min_p",
    "max_length": "max_new_tokens",
    "max_new_tokens": "max_new_tokens",
}
"""Options set in the yaml, with their yaml keys; the model's own values are not used."""

REFUSED: dict[str, Callable[[Any], bool]] = {
    # truncation methods that Sampling does not implement
    "top_h": lambda value: True,
    "typical_p": lambda value: value < 1,
    "epsilon_cutoff": lambda value: 0 < value < 1,
    "eta_cutoff": lambda value: 0 < value < 1,
    # processors with a state, or with model passes
    "guidance_scale": lambda value: value != 1,
    "watermarking_config": lambda value: True,
    # other decoding methods
    "num_beams": lambda value: value > 1,
    "num_beam_groups": lambda value: value > 1,
    "diversity_penalty": lambda value: value != 0,
    "constraints": bool,
    "force_words_ids": bool,
    "penalty_alpha": lambda value: value > 0,
    "dola_layers": lambda value: True,
    "token_healing": bool,
    # stopping criteria that Stopping does not take from the model
    "stop_strings": bool,
    "max_time": lambda value: True,
}
"""Unsupported options that change the output of `generate`, each with a predicate that is true for active values."""

WITHOUT_EFFECT = frozenset(
    {
        # token ids read by `build_stopping` and `decoder_start`
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        # a softmax of normalised log-probabilities is the same distribution
        "renormalize_logits",
        # beam search only
        *("early_stopping", "length_penalty", "low_memory"),
        # number and content of the outputs
        *("num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        "return_dict_in_generate",
        # caches and compilation
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
        *("continuous_batching_config", "prefill_chunk_size"),
        # transformers' own speculative decoding
        *("use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "speculation_type"),
        *("assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        # metadata of the file
        *("transformers_version", "_from_model_config"),
    }
)
"""Options that do not change the distribution of a text."""

NEUTRAL: dict[str, Any] = {
    "encoder_repetition_penalty": 1,
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "remove_invalid_values": False,
}


def check_generation(generation: object) -> None:
    """Validate `target.generation` before anything is loaded.

    Raises:
        ValueError: it is invalid.
    """
    if isinstance(generation, Mapping):
        for name in generation:
            if name in IN_YAML:
                raise OptionError(
                    "generation", generation, f"others; set {IN_YAML[name]} instead", f"which sets {name}"
                )
            if name not in PROCESSORS and name not in REFUSED:
                allowed = ", ".join([*PROCESSORS, *REFUSED])
                raise OptionError("generation", generation, allowed, f"which sets {name!r}, which is unknown")
    elif generation not in KINDS:
        raise OptionError("generation", generation, f"{', '.join(KINDS)}, or options that replace the model's own")


def active_options(config: GenerationConfig | None, generation: str | Mapping[str, Any]) -> dict[str, Any]:
    """Active options for the logits processors, by name.

    Args:
        config: generation_config of the model.
        generation: "model": the options of config; "ignore": none; a mapping: those of config with some replaced.

    Raises:
        ValueError: generation is invalid, or an active option is not supported.
    """
    check_generation(generation)
    if generation == "ignore":
        return {}
    given: dict[str, Any] = vars(copy.deepcopy(config)) if config is not None else {}
    if isinstance(generation, Mapping):
        given.update(generation)
    for name in refused_options(given):
        if isinstance(generation, Mapping) and name in generation:
            problem = f"which sets {name} to {given[name]!r}, which is not supported"
            raise OptionError("generation", generation, f"others: {', '.join(PROCESSORS)}", problem)
        raise OptionError(
            "generation",
            generation,
            f"{{{name}: null}} to drop it alone, or ignore",
            f"and the model's generation_config sets {name} to {given[name]!r}, which is not supported",
        )
    active = {name: given[name] for name in PROCESSORS if _is_active(name, given.get(name))}
    if given.get("min_new_tokens") is not None:
        active.pop("min_length", None)  # as in `generate`
    return active


def refused_options(given: Mapping[str, Any]) -> list[str]:
    """Names of unsupported options that are active among these."""
    given = {name: value for name, value in given.items() if value is not None}
    return [name for name, is_active in REFUSED.items() if name in given and _holds(is_active, given[name])]


def _holds(is_active: Callable[[Any], bool], value: Any) -> bool:
    try:
        return is_active(value)
    except TypeError:  # a value of another type than transformers expects
        return True


def _is_active(name: str, value: Any) -> bool:
    return value is not None and value != [] and value != {} and not (name in NEUTRAL and value == NEUTRAL[name])
