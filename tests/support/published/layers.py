"""Parts of decoder layers by their formulas, one position at a time, for reference forwards of published drafters."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu


def normed(weight: Tensor, vector: Tensor, eps: float) -> Tensor:
    """RMS norm over the last axis."""
    return weight * vector / (vector.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def turned(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding of [..., D]: entries i and i + D / 2 are turned by the angle position / theta^(2 i / D)."""
    half = vector.shape[-1] // 2
    angles = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    first, second = vector[..., :half], vector[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1)


def attention(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """[heads * D] of one query [heads, D] over keys and values, [groups, D] each."""
    attended = []
    for head, one in enumerate(query):
        group = head // (len(query) // len(keys[0]))
        shares = (torch.stack([key[group] @ one for key in keys]) / one.numel() ** 0.5).softmax(0)
        attended.append(shares @ torch.stack([value[group] for value in values]))
    return torch.cat(attended)


def gated_mlp(weights: Mapping[str, Tensor], name: str, vector: Tensor) -> Tensor:
    """W_down (SiLU(W_gate x) * W_up x)."""
    gate, up, down = (weights[f"{name}.{kind}_proj"] for kind in ("gate", "up", "down"))
    return down @ (silu(gate @ vector) * (up @ vector))
