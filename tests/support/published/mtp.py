"""Layers for multi-token prediction: random weights in the published layouts, and the formula, one text at a time."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tests.support.published.layers import attention, gated_mlp, normed, turned

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_routed_experts": 4, "n_group": 1, "topk_group": 1}


class Published(NamedTuple):
    """A layout: names of the norms of token and state, of the projection and of the last norm; and a target for it."""

    block: str
    names: tuple[str, str, str, str]
    family: str
    config: dict[str, Any]
    hidden_first: bool = False
    one_plus: bool = False


_AFTER = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
_NEXT = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm")
_MIMO = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
LAYOUTS = {
    "deepseek_v3": Published(
        "model.layers.2", tuple(f"model.layers.2.{name}" for name in _AFTER), "deepseek_v3",
        EXPERTS | {"kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6,
                   "num_key_value_heads": 4, "first_k_dense_replace": 1},
    ),
    "glm4_moe": Published(
        "model.layers.2", tuple(f"model.layers.2.{name}" for name in _AFTER), "glm4_moe",
        EXPERTS | {"head_dim": 8, "first_k_dense_replace": 1},
    ),
    "qwen3_next": Published("mtp.layers.0", _NEXT, "qwen3_next", {}, one_plus=True),
    "mimo": Published(
        "model.mtp_layers.0", tuple(f"model.mtp_layers.0.{name}" for name in _MIMO), "qwen2", {}, hidden_first=True
    ),
    "speculators": Published("mtp_layers.0", tuple(f"mtp_layers.0.{name}" for name in _MIMO), "qwen3", {}),
}  # fmt: skip


def save_published_mtp(folder: Path, model: PreTrainedModel, layout: Published) -> tuple[dict[str, Tensor], nn.Module]:
    """Write a random layer beside a copy of the target's embeddings; return its tensors, and its decoder layer."""
    random, hidden = torch.Generator().manual_seed(0), model.config.hidden_size

    def drawn(*shape: int, around: float = 0) -> Tensor:
        return around + torch.randn(shape, generator=random, dtype=torch.float64) * 0.3

    tensors = {f"{layout.names[2]}.weight": drawn(hidden, 2 * hidden)}
    for place in (0, 1, 3):
        tensors[f"{layout.names[place]}.weight"] = drawn(hidden, around=0 if layout.one_plus else 1)
    block = copy.deepcopy(model.model.layers[-1])
    for parameter in block.parameters():
        parameter.add_(drawn(*parameter.shape))
    for name, tensor in block.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            base = f"{layout.block}.{name.removesuffix('.gate_up_proj')}"
            for index, both in enumerate(tensor):
                tensors |= {f"{base}.{index}.{kind}_proj.weight": each
                            for kind, each in zip(("gate", "up"), both.chunk(2), strict=True)}  # fmt: skip
        elif name.endswith("experts.down_proj"):
            base = f"{layout.block}.{name.removesuffix('.down_proj')}"
            tensors |= {f"{base}.{index}.down_proj.weight": each for index, each in enumerate(tensor)}
        else:
            tensors[f"{layout.block}.{name}"] = tensor
    if layout.names[3].endswith("shared_head.norm"):
        tensors |= {f"{layout.block}.embed_tokens.weight": drawn(50, hidden)}
        tensors |= {f"{layout.block}.shared_head.head.weight": drawn(50, hidden)}
    tensors |= {"model.embed_tokens.weight": drawn(50, hidden), "lm_head.weight": drawn(50, hidden)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": layout.family}))
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors, block


def reference_logits(
    model: PreTrainedModel,
    tensors: dict[str, Tensor],
    block: Callable[[Tensor], Tensor],
    layout: Published,
    text: list[int],
    drafted: list[int],
    *,
    after_norm: bool,
) -> Tensor:
    """Logits [len(drafted), V] of each drafted token, given the text and the tokens drafted before it.

    x_t = P [RMS_token(e(token t + 1)); RMS_hidden(h_t)]; y = block(x); logits = W RMS_last(y); and RMS_last(y), or y,
    takes the place of the next h. h_t is the input of the target's output layer.
    """
    embeddings, output = (ends.weight for ends in (model.get_input_embeddings(), model.get_output_embeddings()))
    token_norm, hidden_norm, projection, last_norm = (tensors[f"{name}.weight"] for name in layout.names)
    eps = model.config.rms_norm_eps

    def rms(weight: Tensor, vector: Tensor) -> Tensor:
        return normed(1 + weight if layout.one_plus else weight, vector, eps)

    hidden = list(model.model(torch.tensor([text[:-1]])).last_hidden_state[0])
    logits: list[Tensor] = []
    inputs: list[Tensor] = []
    for position, token in enumerate([*text[1:], *drafted[:-1]]):
        parts = [rms(token_norm, embeddings[token]), rms(hidden_norm, hidden[position])]
        inputs.append(projection @ torch.cat(parts[::-1] if layout.hidden_first else parts))
        if position >= len(text) - 2:
            read = block(torch.stack(inputs))[-1]
            logits.append(output @ rms(last_norm, read))
            hidden.append(rms(last_norm, read) if after_norm else read)
    return torch.stack(logits)


def block_of_class(model: PreTrainedModel, block: nn.Module) -> Callable[[Tensor], Tensor]:
    """The target's own class of layer on a whole text, without a cache."""

    def run(inputs: Tensor) -> Tensor:
        positions, inputs = torch.arange(len(inputs)).unsqueeze(0), inputs.unsqueeze(0)
        mask = torch.full((inputs.shape[1],) * 2, torch.finfo(inputs.dtype).min, dtype=inputs.dtype).triu(1)
        rotary = model.model.rotary_emb(inputs, positions)
        read = block(inputs, attention_mask=mask[None, None], position_ids=positions, position_embeddings=rotary)
        return (read[0] if isinstance(read, tuple) else read).view(inputs.shape[1:])

    return run


def block_by_formula(model: PreTrainedModel, tensors: dict[str, Tensor], prefix: str) -> Callable[[Tensor], Tensor]:
    """A layer of Qwen2 or Qwen3: s = x + Attn(RMS(x)); s + MLP(RMS(s))."""
    config = model.config
    w = {name.removeprefix(f"{prefix}."): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    w |= {name.removesuffix(".weight"): tensor for name, tensor in w.items()}
    eps, theta = config.rms_norm_eps, config.rope_parameters["rope_theta"]

    def heads_of(kind: str, vector: Tensor, position: int) -> Tensor:
        vector = w[f"self_attn.{kind}_proj"] @ vector + w.get(f"self_attn.{kind}_proj.bias", 0)
        vector = vector.unflatten(0, (-1, 8))
        if kind == "v":
            return vector
        norm = w.get(f"self_attn.{kind}_norm")
        return turned(vector if norm is None else normed(norm, vector, eps), position, theta)

    def run(inputs: Tensor) -> Tensor:
        outputs, keys, values = [], [], []
        for position, vector in enumerate(inputs):
            read = normed(w["input_layernorm"], vector, eps)
            query, key, value = (heads_of(kind, read, position) for kind in "qkv")
            keys.append(key)
            values.append(value)
            s = vector + w["self_attn.o_proj"] @ attention(query, keys, values)
            outputs.append(s + gated_mlp(w, "mlp", normed(w["post_attention_layernorm"], s, eps)))
        return torch.stack(outputs)

    return run
