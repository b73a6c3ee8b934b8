"""EAGLE-1 in its published layout: random weights, and the formula in float64, one text and one pair at a time."""

from typing import Any

import torch
from torch import Tensor

from tests.support.published.layers import attention, gated_mlp, normed, turned


def random_eagle1(*, bias: bool = True, seed: int = 0) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config and float32 tensors, with or without the bias of fc."""
    config = {
        "model_type": "llama", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_act": "silu",
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "bias": bias,
    }  # fmt: skip
    shapes = {
        "fc.weight": (16, 32), "layers.0.self_attn.q_proj.weight": (24, 16),
        "layers.0.self_attn.k_proj.weight": (12, 16), "layers.0.self_attn.v_proj.weight": (12, 16),
        "layers.0.self_attn.o_proj.weight": (16, 24),
        "layers.0.mlp.gate_proj.weight": (24, 16), "layers.0.mlp.up_proj.weight": (24, 16),
        "layers.0.mlp.down_proj.weight": (16, 24),
    }  # fmt: skip
    if bias:
        shapes["fc.bias"] = (16,)
    random = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=random) * 0.3 for name, shape in shapes.items()}
    tensors["layers.0.post_attention_layernorm.weight"] = 1 + torch.randn(16, generator=random) * 0.3
    return config, tensors


def reference_states(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    embeddings: Tensor,
    states: Tensor,
    tokens: Tensor,
    drafted: Tensor,
) -> Tensor:
    """States [1 + len(drafted), H] predicted after a text, and after each of the tokens drafted so far.

    f = fc([e(x); h]); s = f + Attn(f); y = s + MLP(RMS(s)); and y takes the place of the next h. The target's output
    layer scores y.

    Args:
        embeddings: [V, H] of the target.
        states: [T, H] h: the input of the target's output layer at each position.
        tokens: [T] int64 x: the token after each position.
        drafted: [D] int64 tokens after those.
    """
    w = {name.removesuffix(".weight"): tensor.double() for name, tensor in tensors.items()}
    keys: list[Tensor] = []
    values: list[Tensor] = []
    predicted: list[Tensor] = []
    for position, token in enumerate([*tokens.tolist(), *drafted.tolist()]):
        h = states[position].double() if position < len(tokens) else predicted[-1]
        f = w["fc"] @ torch.cat([embeddings[token].double(), h]) + w.get("fc.bias", torch.zeros(16))
        query, key, value = ((w[f"layers.0.self_attn.{kind}_proj"] @ f).unflatten(0, (-1, 6)) for kind in "qkv")
        keys.append(turned(key, position, config["rope_theta"]))
        values.append(value)
        s = f + w["layers.0.self_attn.o_proj"] @ attention(turned(query, position, config["rope_theta"]), keys, values)
        inside = normed(w["layers.0.post_attention_layernorm"], s, config["rms_norm_eps"])
        predicted.append(s + gated_mlp(w, "layers.0.mlp", inside))
    return torch.stack(predicted[len(tokens) - 1 :])
