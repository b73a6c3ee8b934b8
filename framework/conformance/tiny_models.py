"""Tiny random models and tokenizers for tests, proofs and checks, built in milliseconds."""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from framework.models import attention as fused_attention
from framework.models.cached_lm import CachedLM
from framework.models.hub import without_progress_bars
from framework.models.pretrained import fingerprint
from framework.models.target import Target

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt_neox")
RECURRENT = (
    "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid",
    "lfm2", "lfm2_moe", "mamba2", "bamba", "granitemoehybrid", "falcon_h1", "nemotron_h", "zamba2", "zaya",
    "mamba", "falcon_mamba", "jamba", "zamba",
)  # fmt: skip
WITHOUT_ATTENTION = ("mamba", "falcon_mamba", "mamba2")
WITH_ENCODER = ("t5", "mt5", "bart", "mbart", "marian")
EOS = "<eos>"
VOCABULARY = 50
CONTEXT = 128
NARROW: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 2}  # settings for reading very many sequences


def tiny_model(
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    vocabulary: int = VOCABULARY,
    context: int = CONTEXT,
    **config: Any,
) -> PreTrainedModel:
    """A random model of two or four layers; norms and biases are random too, so that an error in any weight shows.

    Args:
        family: transformers' model_type, one of FAMILIES, RECURRENT or another.
        seed: seed of the weights; the global generator is left unchanged.
        attention: attention implementation; None: transformers' choice.
        vocabulary: rows of the output layer.
        context: max_position_embeddings.
        config: further entries of the model's config; they override the ones set here.
    """
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family in WITH_ENCODER:
        sizes = _sizes_with_encoder(family, context)
    elif family == "gpt2":
        sizes["n_positions"] = context
    else:
        sizes |= {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": context}
    if family in ("qwen3", "gemma", "gemma2", "gemma3_text"):
        sizes["head_dim"] = 8
    if family == "mistral":
        sizes["sliding_window"] = None
    fused_attention.register()
    if family in RECURRENT:
        sizes |= _recurrent_sizes(family) | {"tie_word_embeddings": False}  # tied, a tiny model repeats its last token
    if family in WITHOUT_ATTENTION:
        attention = "eager"
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    settings = AutoConfig.for_model(family, **{"vocab_size": vocabulary, **sizes, **ends, **config})
    return random_model(settings, seed=seed, dtype=dtype, attention=attention)


def random_model(
    config: PreTrainedConfig,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str | None = None,
    matrices: float = 0.15,
    vectors: float = 0.15,
) -> PreTrainedModel:
    """A model whose weights are all random, including those initialised to zeros or ones.

    Args:
        seed: seed of the weights; the global generator is left unchanged.
        attention: attention implementation; None: the model class's default.
        matrices: standard deviation of the noise added to weights of two or more dimensions.
        vectors: standard deviation of the noise added to norms and biases.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made_by = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        model = made_by.from_config(config, dtype=torch.float64, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * (matrices if parameter.dim() > 1 else vectors))
    return model.to(dtype).eval().requires_grad_(False)


def _recurrent_sizes(family: str) -> dict[str, Any]:
    """State sizes and layers: usually two, a recurrent one and, if the family has both, an attention layer."""
    layers: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
    experts = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    delta = {"head_dim": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    latent = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8, "num_local_experts": 4}
    mamba2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 4}
    all_heads = {"num_key_value_heads": 4}
    match family:
        case "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text":
            return layers | delta | {"linear_num_value_heads": 4, "num_experts": 4} | experts
        case "olmo_hybrid":
            return layers | delta | {"linear_num_value_heads": 2} | all_heads
        case "kimi_linear":
            return layers | latent | experts | all_heads | {"linear_head_dim": 8, "linear_num_heads": 4}
        case "bailing_hybrid":
            groups = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
            return layers | latent | experts | all_heads | groups | {"head_dim": 8}
        case "lfm2" | "lfm2_moe":
            layers = {"layer_types": ["conv", "full_attention"]}
            return layers | experts | {"block_auto_adjust_ff_dim": False, "num_experts": 4, "num_dense_layers": 1}
        case "mamba" | "falcon_mamba":
            return {"state_size": 8}
        case "mamba2":
            return {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}
        case "bamba":
            return mamba2 | {"attn_layer_indices": [1]}
        case "granitemoehybrid":
            return layers | mamba2 | {"num_local_experts": 4, "shared_intermediate_size": 16}
        case "falcon_h1":
            return mamba2 | {"mamba_d_ssm": 64}
        case "nemotron_h":
            layers = {"layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"], "num_hidden_layers": 4}
            heads = {"head_dim": 8, "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1}
            experts |= {"n_routed_experts": 4, "moe_shared_expert_intermediate_size": 16}
            return layers | heads | experts | {"chunk_size": 4}
        case "jamba":
            periods = {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2}
            return periods | {"num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 4}
        case "zamba" | "zamba2":
            layers = {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4}
            heads = {"n_mamba_heads": 2, "mamba_d_state": 8, "chunk_size": 4}
            return layers | heads | all_heads | ({"mamba_dt_rank": 4} if family == "zamba" else {"mamba_ngroups": 1})
        case _:
            return {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16, "router_hidden_size": 8}


def _sizes_with_encoder(family: str, context: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"d_model": 32, "decoder_start_token_id": 1}
    if family.endswith("t5"):
        return sizes | {"d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
                        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
                        "n_positions": context}  # fmt: skip
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder")
             for name, size in (("ffn_dim", 48), ("attention_heads", 4))}  # fmt: skip
    return sizes | sides | {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": context}


def tiny_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token per character, in this order: end-of-text (id 0), space, a-z, newline, 0-9, A-Z, and so on."""
    return _tokenizer([EOS, *_characters(vocabulary - 1)], merges=[])


def tiny_other_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The same characters in reverse order, without the first, and one more token per pair of neighbours."""
    characters = _characters(vocabulary - 1)[:0:-1] or _characters(vocabulary - 1)
    merges = list(zip(characters[::2], characters[1::2], strict=False))
    return _tokenizer([*characters, EOS, *map("".join, merges)], merges=merges)


def _characters(number: int) -> list[str]:
    first = " " + string.ascii_lowercase + "\n" + string.digits + string.ascii_uppercase + string.punctuation
    return [*first, *(chr(0x4E00 + i) for i in range(number))][:number]


def _tokenizer(tokens: list[str], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def tiny_target(
    family: str = "llama", *, vocabulary: int = VOCABULARY, context: int = CONTEXT, **settings: Any
) -> Target:
    """A target with random weights; `settings` go to tiny_model."""
    model = tiny_cached_lm(family, vocabulary=vocabulary, context=context, **settings)
    return Target(
        model=model,
        tokenizer=tiny_tokenizer(vocabulary),
        vocabulary_size=vocabulary,
        fingerprint=fingerprint(model.model),
    )


def tiny_cached_lm(family: str = "llama", *, vocabulary: int = VOCABULARY, **settings: Any) -> CachedLM:
    """A CachedLM of a random model, without a tokenizer, such as a drafter's; `settings` go to tiny_model."""
    return CachedLM(tiny_model(family, vocabulary=vocabulary, **settings), vocabulary_size=vocabulary)


def save_tiny(
    folder: Path,
    family: str = "llama",
    *,
    vocabulary: int = VOCABULARY,
    tokenizer: PreTrainedTokenizerFast | None = None,
    **settings: Any,
) -> Path:
    """Save a random model and its tokenizer as a Hugging Face folder; `settings` go to tiny_model.

    Args:
        tokenizer: tokenizer with `vocabulary` tokens; None: tiny_tokenizer.
    """
    with without_progress_bars():
        tiny_model(family, vocabulary=vocabulary, **settings).save_pretrained(folder)
    (tokenizer or tiny_tokenizer(vocabulary)).save_pretrained(folder)
    return folder
