"""EAGLE-3 in its published layout: random weights, and the formula in float64, one text and one pair at a time."""

from typing import Any

import torch
from torch import Tensor

from tests.support.published.layers import attention, gated_mlp, normed, turned


def random_eagle3(*, seed: int = 0, **settings: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config and float32 tensors in the original layout; settings override the config's entries.

    With mask_token_id among them, the drafter is a P-EAGLE.
    """
    config = {
        "model_type": "llama", "vocab_size": 50, "draft_vocab_size": 20, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "hidden_act": "silu",
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "attention_bias": False,
    } | settings  # fmt: skip
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (width * config[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    shapes = {
        "embed_tokens": (config["vocab_size"], hidden),
        "fc": (hidden, 3 * hidden),
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "lm_head": (config["draft_vocab_size"], hidden),
    }
    norms = dict.fromkeys(("norm", "midlayer.hidden_norm", "midlayer.input_layernorm"), hidden)
    norms |= {"midlayer.post_attention_layernorm": hidden}
    if config["model_type"] == "qwen3":
        norms |= dict.fromkeys(("midlayer.self_attn.q_norm", "midlayer.self_attn.k_norm"), width)
    random = torch.Generator().manual_seed(seed)
    tensors = {f"{name}.weight": torch.randn(shape, generator=random) * 0.3 for name, shape in shapes.items()}
    tensors |= {f"{name}.weight": 1 + torch.randn(size, generator=random) * 0.3 for name, size in norms.items()}
    if "mask_token_id" in config:
        tensors["mask_hidden"] = torch.randn(1, 1, 3 * hidden, generator=random)
    if config["draft_vocab_size"] < config["vocab_size"]:
        kept = torch.randperm(config["vocab_size"], generator=random)[: config["draft_vocab_size"]].sort().values
        tensors["d2t"] = kept - torch.arange(len(kept))
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, kept, True)
    return config, tensors


def reference_logits(
    config: dict[str, Any], tensors: dict[str, Tensor], features: Tensor, tokens: Tensor, drafted: Tensor
) -> Tensor:
    """Logits [1 + len(drafted), Vd] after a text, and after each of the tokens drafted so far.

    g = fc(a); u = [RMS_in(e(x)); RMS_hid(g)]; s = g + Attn(u); y = s + MLP(RMS_post(s)); logits = W RMS(y); and y takes
    the place of the next g. With norm_before_residual, s = RMS_hid(g) + Attn(u). P-EAGLE reads fc(mask_hidden) there.

    Args:
        features: [T, 3 H] a: the target's three hidden states at each position, joined.
        tokens: [T] int64 x: the token after each position.
        drafted: [D] int64 tokens after those; masks, for P-EAGLE.
    """
    w = {name.removesuffix(".weight"): tensor.double() for name, tensor in tensors.items()}
    size = config["head_dim"]

    def rms(name: str, vector: Tensor) -> Tensor:
        return normed(w[name], vector, config["rms_norm_eps"])

    def heads_of(kind: str, both: Tensor, position: int) -> Tensor:
        vector = (w[f"midlayer.self_attn.{kind}_proj"] @ both).unflatten(0, (-1, size))
        if f"midlayer.self_attn.{kind}_norm" in w:
            vector = rms(f"midlayer.self_attn.{kind}_norm", vector)
        return vector if kind == "v" else turned(vector, position, config["rope_theta"])

    masked = w["fc"] @ w["mask_hidden"].flatten() if "mask_hidden" in w else None
    keys: list[Tensor] = []
    values: list[Tensor] = []
    logits = []
    state = torch.empty(0)
    for position, token in enumerate([*tokens.tolist(), *drafted.tolist()]):
        later = state if masked is None else masked
        g = w["fc"] @ features[position].double() if position < len(tokens) else later
        hidden = rms("midlayer.hidden_norm", g)
        both = torch.cat([rms("midlayer.input_layernorm", w["embed_tokens"][token]), hidden])
        query = heads_of("q", both, position)
        keys.append(heads_of("k", both, position))
        values.append(heads_of("v", both, position))
        residual = hidden if config.get("norm_before_residual") else g
        s = residual + w["midlayer.self_attn.o_proj"] @ attention(query, keys, values)
        state = s + gated_mlp(w, "midlayer.mlp", rms("midlayer.post_attention_layernorm", s))
        logits.append(w["lm_head"] @ rms("norm", state))
    return torch.stack(logits[len(tokens) - 1 :])
