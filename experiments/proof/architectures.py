"""Table of model architectures: tiny random models of transformers' classes, one configuration per line.

A configuration has a model_type and the settings that differ from the shared sizes. `sized` applies the shared sizes
that a config class has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers import CONFIG_MAPPING, GenerationConfig, PreTrainedConfig, PreTrainedModel

from framework.conformance.tiny_models import random_model

VOCABULARY = 50
CONTEXT = 80
WINDOW = 12  # tokens in a sliding window or chunk; the final length of every text in the matrix exceeds it

# Size fields of the config classes and their values here.
SIZES: dict[str, Any] = {
    size: value
    for names, value in (
        ("vocab_size decoder_vocab_size vocab_size_per_layer_input", VOCABULARY),
        ("hidden_size n_embd d_model lru_width attention_hidden_size word_embed_proj_dim embedding_dim", 32),
        ("intermediate_size ffn_dim d_ff n_inner dff ffn_hidden_size encoder_ffn_dim decoder_ffn_dim", 48),
        ("intermediate_size_mlp shared_intermediate_size", 48),
        ("moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size", 16),
        ("moe_shared_expert_intermediate_size hidden_size_per_layer_input", 16),
        ("num_hidden_layers n_layer n_layers num_layers num_blocks", 2),
        ("encoder_layers decoder_layers num_decoder_layers num_encoder_layers", 2),
        ("num_attention_heads n_head n_heads num_heads attention_heads encoder_attention_heads", 4),
        ("decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads", 4),
        ("num_key_value_heads num_kv_heads", 2),
        ("head_dim d_kv kv_channels attention_head_dim qk_nope_head_dim qk_rope_head_dim rotary_dim", 8),
        ("v_head_dim", 12),
        ("kv_lora_rank q_lora_rank laurel_rank", 16),
        ("num_experts num_local_experts n_routed_experts moe_num_experts", 4),
        ("num_experts_per_tok num_experts_per_token moe_k moe_topk", 2),
        ("n_shared_experts num_shared_experts moe_num_shared_experts", 1),
        ("n_group num_expert_group topk_group", 1),
        ("first_k_dense_replace num_dense_layers", 1),
        ("sliding_window window_size attention_window_size attention_chunk_size keep_window_size", WINDOW),
        ("max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length", CONTEXT),
        ("max_decoder_position_embeddings max_encoder_position_embeddings", CONTEXT),
        ("relative_attention_num_buckets num_buckets", 8),
        ("relative_attention_max_distance relative_max_distance", 16),
        ("mamba_d_state state_size ssm_state_size mamba_d_head mamba_head_dim", 8),
        ("mamba_n_heads mamba_num_heads linear_num_value_heads linear_head_dim", 8),
        ("mamba_d_ssm", 64),
        ("mamba_dt_rank time_step_rank", 4),
        ("mamba_chunk_size chunk_size block_size", 8),
        ("linear_key_head_dim linear_value_head_dim linear_num_heads", 8),
        ("linear_num_key_heads", 4),
    )
    for size in names.split()
}
ENDS = {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
WITH_ENCODER = {"decoder_start_token_id": 1, "forced_eos_token_id": None, "pad_token_id": 2}
# Token ids within the vocabulary, for config classes that forbid None.
INSIDE = {"pad_token_id": 49, "bos_token_id": 48, "cls_token_id": 48, "sep_token_id": 47}
LAYER_KINDS = {"F": "full_attention", "S": "sliding_attention", "C": "chunked_attention", "L": "linear_attention",
               "K": "conv", "H": "hybrid"}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """Configuration of a model.

    Attributes:
        family: common name of the model family.
        model_type: transformers' name of the config class.
        settings: config entries other than the shared sizes.
        variant: difference from other configurations of the same model_type.
        context: maximum number of positions used.
        layers: kind of each layer, as letters of LAYER_KINDS; empty: the config class's default.
        dtype: float64 where float32 is too coarse for equal tokens.
        note: reason for unusual settings.
    """

    family: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    context: int = CONTEXT
    layers: str = ""
    dtype: torch.dtype = torch.float32
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.model_type}, {self.variant}" if self.variant else self.model_type

    def config(self) -> PreTrainedConfig:
        """Build a new config; models modify theirs, so it is not shared."""
        kinds: dict[str, Any] = {}
        if self.layers:
            kinds = {"num_hidden_layers": len(self.layers), "layer_types": [LAYER_KINDS[each] for each in self.layers]}
        return sized(self.model_type, **{**kinds, **self.settings})

    def model(self, attention: str | None = None) -> PreTrainedModel:
        """Build the random model; attention None: its class's default.

        Weights have a spread large enough that attention is sharp and texts do not repeat one token. Encoder-decoder
        models get a smaller spread for matrices, without which their outputs depend on the biases only.
        """
        config = self.config()
        spreads = (0.15, 0.15) if config.is_encoder_decoder else (0.3, 0.05)
        model = random_model(config, dtype=self.dtype, attention=attention, matrices=spreads[0], vectors=spreads[1])
        output, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
        if output.weight is embeddings.weight:  # T5 ignores tie_word_embeddings=False, and tied it repeats one token
            output.weight = torch.nn.Parameter(output.weight.flip(0, 1), requires_grad=False)
        # Drops the suppressed and forced tokens of some config classes.
        model.generation_config = GenerationConfig(
            decoder_start_token_id=getattr(config, "decoder_start_token_id", None)
        )
        return model


def sized(model_type: str, **settings: Any) -> PreTrainedConfig:
    """Build a config with the shared sizes that its class has, overridden by `settings`.

    A sliding_window with the default None stays None: such a model has a window only if `settings` gives one.
    """
    config_class = CONFIG_MAPPING[model_type]
    sizes = _sizes(config_class)
    for key, part in config_class.sub_configs.items():
        sizes[key] = {**_sizes(part), **settings.pop(key, {})}
    return config_class(**{**sizes, **settings})


def _sizes(config_class: type[PreTrainedConfig]) -> dict[str, Any]:
    defaults = {each.name: each.default for each in fields(config_class)}
    sizes = {key: value for key, value in {**SIZES, **ENDS}.items() if key in defaults}
    if defaults.get("sliding_window", WINDOW) is None:
        del sizes["sliding_window"]
    if defaults.get("is_encoder_decoder"):
        sizes |= WITH_ENCODER
    return sizes


LONG_ROTARY = {"rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
               "short_factor": [1.0, 1.2, 1.4, 1.6], "long_factor": [2.0, 3.0, 4.0, 5.0]}  # fmt: skip

TABLE = (
    Architecture("Llama", "llama"),
    Architecture("Llama", "llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                 "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}},
                 "llama3 rotary"),
    Architecture("Llama 4", "llama4_text", {"moe_layers": [1], "no_rope_layers": [1, 0]}, layers="CF"),
    Architecture("Llama 4", "llama4_text", {"moe_layers": [1], "no_rope_layers": [1, 0], "floor_scale": 4},
                 "attention temperature", layers="CF"),
    Architecture("Qwen 2", "qwen2"),
    Architecture("Qwen 2", "qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW},
                 f"window {WINDOW}"),
    Architecture("Qwen 3", "qwen3"),
    Architecture("Qwen 2 MoE", "qwen2_moe"),
    Architecture("Qwen 3 MoE", "qwen3_moe"),
    Architecture("Qwen 3 Next", "qwen3_next", layers="LF"),
    Architecture("Qwen 3.5", "qwen3_5_text", layers="LF"),
    Architecture("Qwen 3.5 MoE", "qwen3_5_moe_text", layers="LF"),
    Architecture("Mistral", "mistral", {}, f"window {WINDOW}"),
    Architecture("Mistral", "mistral", {"sliding_window": None}, "no window"),
    Architecture("Mixtral", "mixtral"),
    Architecture("Mixtral", "mixtral", {"sliding_window": WINDOW}, f"window {WINDOW}"),
    Architecture("Ministral", "ministral", layers="SF"),
    Architecture("Ministral 3", "ministral3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0,
                 "factor": 4.0, "original_max_position_embeddings": 20, "llama_4_scaling_beta": 0.1}}),
    Architecture("Phi", "phi"),
    Architecture("Phi 3", "phi3", {"sliding_window": WINDOW}, f"window {WINDOW}"),
    Architecture("Phi 3", "phi3", {"rope_parameters": LONG_ROTARY, "original_max_position_embeddings": 32},
                 "longrope"),
    Architecture("Phi 3", "phi3", {"rope_parameters": LONG_ROTARY, "original_max_position_embeddings": 32},
                 "longrope, original length", context=32),
    Architecture("Phi MoE", "phimoe", {"sliding_window": WINDOW}),
    Architecture("Gemma", "gemma"),
    Architecture("Gemma 2", "gemma2", {"query_pre_attn_scalar": 8}, layers="SF"),
    Architecture("Gemma 3", "gemma3_text", {"query_pre_attn_scalar": 8}, layers="SSF"),
    Architecture("Gemma 3n", "gemma3n_text", {"num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.0] * 4},
                 layers="SFSF"),
    Architecture("Gemma 4", "gemma4_text", {"num_kv_shared_layers": 2}, layers="SFSF"),
    Architecture("VaultGemma", "vaultgemma", {"query_pre_attn_scalar": 8}, layers="SF"),
    Architecture("OLMo", "olmo"),
    Architecture("OLMo 2", "olmo2"),
    Architecture("OLMo 3", "olmo3", layers="SF"),
    Architecture("OLMoE", "olmoe"),
    Architecture("FlexOLMo", "flex_olmo"),
    Architecture("Command R", "cohere", {"use_qk_norm": True, "logit_scale": 1.0}),
    Architecture("Command R7B", "cohere2", {"logit_scale": 1.0}, layers="SF"),
    Architecture("gpt-oss", "gpt_oss", layers="SF"),
    Architecture("gpt-oss", "gpt_oss", {"sliding_window": CONTEXT}, "sinks alone", layers="SF"),
    Architecture("EXAONE 4", "exaone4", layers="SF"),
    Architecture("SmolLM 3", "smollm3", {"no_rope_layers": [1, 0]}),
    Architecture("GLM", "glm"),
    Architecture("GLM 4", "glm4"),
    Architecture("GLM 4 MoE", "glm4_moe", {"use_qk_norm": True}),
    Architecture("DeepSeek V2", "deepseek_v2", {"num_key_value_heads": 4}),
    Architecture("DeepSeek V3", "deepseek_v3", {"num_key_value_heads": 4, "n_group": 2}),
    Architecture("MiniCPM 3", "minicpm3", {"num_key_value_heads": 4}),
    Architecture("LongCat Flash", "longcat_flash", {"zero_expert_num": 2, "num_key_value_heads": 4}),
    Architecture("Granite", "granite", {"attention_multiplier": 0.35, "residual_multiplier": 0.7}),
    Architecture("Granite MoE", "granitemoe", {"attention_multiplier": 0.35}),
    Architecture("Granite Hybrid", "granitemoehybrid", {"attention_multiplier": 0.35}, layers="LF"),
    Architecture("Granite SWA", "granite_swa", {"attention_multiplier": 0.35}, layers="SF"),
    Architecture("StableLM", "stablelm"),
    Architecture("StarCoder 2", "starcoder2", {"sliding_window": WINDOW}),
    Architecture("StarCoder", "gpt_bigcode"),
    Architecture("GPT-2", "gpt2"),
    Architecture("GPT-NeoX", "gpt_neox"),
    Architecture("GPT-J", "gptj", {"rotary_dim": 4}),
    Architecture("GPT-Neo", "gpt_neo", {"attention_types": [[["global", "local"], 1]]}),
    Architecture("CodeGen", "codegen", {"rotary_dim": 4}),
    Architecture("OPT", "opt"),
    Architecture("XGLM", "xglm"),
    Architecture("BioGPT", "biogpt"),
    Architecture("Falcon", "falcon", {}, "rotary"),
    Architecture("Falcon", "falcon", {"alibi": True}, "ALiBi"),
    Architecture("Falcon", "falcon", {"new_decoder_architecture": True}, "new decoder"),
    Architecture("BLOOM", "bloom"),
    Architecture("MPT", "mpt", {"attn_config": {"alibi": True}}),
    Architecture("Persimmon", "persimmon"),
    Architecture("Nemotron", "nemotron"),
    # transformers clamps time steps to time_step_min in passes of several tokens but not of one.
    Architecture("Nemotron H", "nemotron_h", {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
                 "n_groups": 2}),
    Architecture("Nemotron H", "nemotron_h", {"layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
                 "n_groups": 2, "time_step_min": 1e-30}, "time steps never clamped"),
    Architecture("Helium", "helium"),
    Architecture("MiniMax", "minimax", layers="LF"),
    Architecture("MiniMax M2", "minimax_m2"),
    Architecture("ERNIE 4.5", "ernie4_5"),
    Architecture("ERNIE 4.5 MoE", "ernie4_5_moe", {"moe_layer_start_index": 1, "moe_layer_end_index": 1}),
    Architecture("Seed-OSS", "seed_oss"),
    Architecture("Hunyuan", "hunyuan_v1_dense"),
    Architecture("Hunyuan MoE", "hunyuan_v1_moe"),
    Architecture("dots.llm1", "dots1", {"max_window_layers": 1}, layers="SF"),
    Architecture("BitNet", "bitnet"),
    Architecture("Apertus", "apertus"),
    Architecture("Arcee", "arcee"),
    Architecture("AFMoE", "afmoe", layers="SF"),
    Architecture("ModernBERT", "modernbert-decoder", {"local_attention": WINDOW, **INSIDE}, layers="SF"),
    Architecture("MiMo V2 Flash", "mimo_v2_flash", {"mlp_layer_types": ["dense", "sparse"]}, layers="SF"),
    Architecture("Doge", "doge"),
    Architecture("DiffLlama", "diffllama"),
    Architecture("JetMoE", "jetmoe", {"num_attention_heads": 4}),
    Architecture("DBRX", "dbrx", {"attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
                 "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}}),
    Architecture("nanochat", "nanochat"),
    Architecture("InternLM 3", "internlm3"),
    Architecture("Mamba", "mamba"),
    Architecture("Mamba 2", "mamba2", {"num_heads": 8, "n_groups": 2}),
    Architecture("Falcon Mamba", "falcon_mamba"),
    Architecture("Falcon H1", "falcon_h1"),
    Architecture("Jamba", "jamba", {"attn_layer_period": 2, "attn_layer_offset": 1}),
    Architecture("Bamba", "bamba", {"attn_layer_indices": [1]}),
    Architecture("Zamba 2", "zamba2", {"layers_block_type": ["linear_attention", "hybrid"]}),
    Architecture("RecurrentGemma", "recurrent_gemma", {"block_types": ["recurrent", "attention"]}),
    Architecture("RWKV", "rwkv"),
    Architecture("xLSTM", "xlstm", {"qk_dim_factor": 1.0, "hidden_size": 64, "embedding_dim": 64}),
    Architecture("LFM 2", "lfm2", layers="KF"),
    Architecture("LFM 2 MoE", "lfm2_moe", {"num_dense_layers": 1}, layers="KF"),
    Architecture("Kimi Linear", "kimi_linear", {"num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse"]},
                 layers="LF"),
    Architecture("T5", "t5"),
    Architecture("mT5", "mt5"),
    Architecture("UMT5", "umt5"),
    Architecture("Switch Transformers", "switch_transformers", {"num_sparse_encoder_layers": 1,
                 "num_sparse_decoder_layers": 1}),
    Architecture("LongT5", "longt5", {"local_radius": 7}),
    Architecture("BART", "bart"),
    Architecture("mBART", "mbart"),
    Architecture("PLBART", "plbart"),
    Architecture("Marian", "marian", {"scale_embedding": True}),
    Architecture("Pegasus", "pegasus"),
    Architecture("Blenderbot", "blenderbot"),
    Architecture("M2M-100 and NLLB", "m2m_100"),
    Architecture("LED", "led", {"attention_window": 8}),
    Architecture("ProphetNet", "prophetnet"),
    Architecture("T5Gemma", "t5gemma", {side: {"layer_types": ["sliding_attention", "full_attention"],
                 "query_pre_attn_scalar": 8, "pad_token_id": 2} for side in ("encoder", "decoder")}),
)  # fmt: skip
