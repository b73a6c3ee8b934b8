"""Published Medusa heads: random files in each layout, and the formula in float64, one head and state at a time."""

import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from framework.models.target import Target

HEADS = 5
LAYOUTS = ("original", "pickled", "vllm")


class Head(NamedTuple):
    weight: Tensor  # A [H, H]
    bias: Tensor  # b [H]
    output: Tensor  # W [V, H]


def save_published_heads(
    folder: Path, target: Target, *, own: bool = True, layout: str = "original", blocks: int = 1, bias: bool = True
) -> list[Head]:
    """Write random heads as their project does, with a config that names too few heads; return their matrices.

    Args:
        own: heads with output layers of their own (v1), or scored by the target's (v2; in vLLM, original_lm_head).
        layout: original; pickled, the original in a .pt file; or vllm.
        blocks: number of residual blocks, which share their weights.
        bias: whether blocks have one; without only in vLLM's layout.
    """
    random, output = torch.Generator().manual_seed(0), target.model.model.get_output_embeddings().weight
    heads, tensors = [], {}
    for index in range(HEADS):
        a, b, w = (
            torch.randn(shape, generator=random, dtype=torch.float64) * 0.3
            for shape in ((output.shape[1], output.shape[1]), output.shape[1], output.shape)
        )
        heads.append(Head(a, b if bias else b * 0, w if own else output))
        for block in range(blocks):
            name = f"medusa_heads.blocks.{index}.layers.{block}" if layout == "vllm" else f"{index}.{block}.linear"
            tensors |= {f"{name}.weight": a.clone()} | ({f"{name}.bias": b.clone()} if bias else {})
        if own:
            tensors[f"medusa_heads.lm_heads.{index}.weight" if layout == "vllm" else f"{index}.{blocks}.weight"] = w
    config = {"medusa_num_heads": 2, "medusa_num_layers": blocks, "base_model_name_or_path": "x"}
    if layout == "vllm":
        config = {"num_heads": HEADS, "num_hidden_layers": blocks, "medusa_fc_bias": bias, "original_lm_head": not own}
        tensors |= {} if own else {"lm_heads.0.weight": output.clone()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if layout == "pickled":
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        save_file(tensors, folder / f"{'model' if layout == 'vllm' else 'medusa_lm_head'}.safetensors")
    return heads


def reference_logits(heads: list[Head], state: Tensor, *, blocks: int = 1) -> Tensor:
    """Logits [HEADS, V] of one hidden state [H] after the final norm: W (h + SiLU(A h + b)), the block repeated."""
    logits = []
    for head in heads:
        hidden = state
        for _ in range(blocks):
            inner = head.weight @ hidden + head.bias
            hidden = hidden + inner / (1 + torch.exp(-inner))
        logits.append(head.output @ hidden)
    return torch.stack(logits)
