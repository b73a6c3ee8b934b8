"""Conversion of a Llama of transformers to GGUF in float32, for llama.cpp."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

FIXED_ANGLES = ("default", "linear", "yarn", "llama3")  # rotary angles that do not depend on a text's length


def why_no_gguf(model: PreTrainedModel) -> str:
    """Return why a model cannot be converted; empty: it can."""
    config = model.config
    if config.model_type != "llama" or config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
        return f"a model of type {config.model_type}; llama.cpp's conversion knows Llamas without biases"
    if (kind := config.rope_parameters["rope_type"]) not in FIXED_ANGLES:
        return f"a Llama with rotary angles {kind!r}; llama.cpp's conversion knows {', '.join(FIXED_ANGLES)}"
    return ""


def write_gguf(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Write a Llama to a GGUF file; its folder is made.

    Args:
        model: a model without a reason by `why_no_gguf`; it is not modified.
        tokenizer: not written, since texts go to llama.cpp as token ids.
        path: the file.
    """
    import gguf

    config, rotary = model.config, model.get_decoder().rotary_emb
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.LLAMA])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    # llama.cpp divides its own angles by these factors, which hold every fixed scaling, such as YaRN's.
    halves = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    factors = config.rope_parameters["rope_theta"] ** -halves / rotary.inv_freq.double()
    writer.add_tensor("rope_freqs.weight", _array(factors))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("q_proj.weight"):
            # The factor of sines and cosines is that of queries and of keys, so the scores get its square.
            tensor = in_pairs(tensor.float(), config.num_attention_heads) * rotary.attention_scaling**2
        elif name.endswith("k_proj.weight"):
            tensor = in_pairs(tensor, config.num_key_value_heads)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), _array(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def in_pairs(weight: Tensor, num_heads: int) -> Tensor:
    """[H * D, F] rows of a projection in llama.cpp's order, which rotates neighbours, not halves of a head."""
    return weight.unflatten(0, (num_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().float().contiguous().numpy()
