"""DFlash in its published layout: random weights, and the formula in float64, one block and one position at a time."""

from typing import Any

import torch
from torch import Tensor

from tests.support.published.layers import attention, gated_mlp, normed, turned

LAYERS = [-1, 0, 1]  # the target's layers whose outputs fc joins; -1: the embeddings


def random_dflash(*, seed: int = 0) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config and float32 tensors in the original layout; embeddings and output layer are the target's."""
    config = {
        "model_type": "qwen3", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_theta": 500.0, "attention_bias": False, "block_size": 4,
        "num_target_layers": 2, "dflash_config": {"mask_token_id": 49, "target_layer_ids": LAYERS},
    }  # fmt: skip
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (width * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    matrices, norms = {"fc": (hidden, len(LAYERS) * hidden)}, {"norm": hidden, "hidden_norm": hidden}
    for layer in (f"layers.{index}" for index in range(config["num_hidden_layers"])):
        sizes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
        matrices |= {f"{layer}.self_attn.{kind}_proj": size for kind, size in sizes.items()}
        matrices |= {f"{layer}.mlp.{kind}_proj": (inner, hidden) for kind in ("gate", "up")}
        matrices |= {f"{layer}.mlp.down_proj": (hidden, inner)}
        norms |= {f"{layer}.self_attn.q_norm": width, f"{layer}.self_attn.k_norm": width}
        norms |= {f"{layer}.input_layernorm": hidden, f"{layer}.post_attention_layernorm": hidden}
    random = torch.Generator().manual_seed(seed)
    tensors = {f"{name}.weight": torch.randn(size, generator=random) * 0.3 for name, size in matrices.items()}
    tensors |= {f"{name}.weight": 1 + torch.randn(size, generator=random) * 0.3 for name, size in norms.items()}
    return config, tensors


def reference_logits(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    features: Tensor,
    pending: int,
    *,
    embeddings: Tensor,
    output: Tensor,
) -> Tensor:
    """Logits [block - 1, V] of the tokens after pending, all at once: W RMS(x) at the masks."""
    return reference_states(config, tensors, features, pending, embeddings=embeddings)[1:] @ output.double().T


def reference_states(
    config: dict[str, Any], tensors: dict[str, Tensor], features: Tensor, pending: int, *, embeddings: Tensor
) -> Tensor:
    """RMS(x) [block, H] at pending and at the masks.

    c = RMS(fc(features)); x = [e(pending), MASK, ...]; in every layer, queries of LN(x) attend to keys and values of c
    and of LN(x), in both directions within the block.

    Args:
        features: [T, 3 H] the target's hidden states before pending, joined.
        pending: the last committed token, at position T.
        embeddings: [V, H] of the target.
    """
    w = {name.removesuffix(".weight"): tensor.double() for name, tensor in tensors.items()}

    def rms(name: str, vector: Tensor) -> Tensor:
        return normed(w[name], vector, config["rms_norm_eps"])

    def heads_of(name: str, vector: Tensor, position: int) -> Tensor:
        vector = (w[f"{name}_proj"] @ vector).unflatten(0, (-1, config["head_dim"]))
        return turned(rms(f"{name}_norm", vector), position, config["rope_theta"]) if f"{name}_norm" in w else vector

    context = [rms("hidden_norm", w["fc"] @ each.double()) for each in features]
    masks = [config["dflash_config"]["mask_token_id"]] * (config["block_size"] - 1)
    states = [embeddings[token].double() for token in (pending, *masks)]
    for layer in (f"layers.{index}" for index in range(config["num_hidden_layers"])):
        inputs = [rms(f"{layer}.input_layernorm", state) for state in states]
        read = list(enumerate([*context, *inputs]))
        keys = [heads_of(f"{layer}.self_attn.k", vector, position) for position, vector in read]
        values = [heads_of(f"{layer}.self_attn.v", vector, position) for position, vector in read]
        for place, vector in enumerate(inputs):
            query = heads_of(f"{layer}.self_attn.q", vector, len(context) + place)
            s = states[place] + w[f"{layer}.self_attn.o_proj"] @ attention(query, keys, values)
            states[place] = s + gated_mlp(w, f"{layer}.mlp", rms(f"{layer}.post_attention_layernorm", s))
    return torch.stack([rms("norm", state) for state in states])
