"""Attention without copies of keys that heads share, and of few tokens as sums, which a compiler makes one kernel of.

B rows, M tokens read, W slots seen, G heads that share keys and values, K of those, D their size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "fused"
MOST_TOKENS = 16  # of all rows together; for more, sdpa is faster


def register() -> None:
    """Let Hugging Face's models know this attention by its name."""
    AttentionInterface.register(NAME, fused_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def fused_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Heads that share keys are read as more tokens of one head, so that no key is copied.

    For few tokens in a compiled program on a CPU it is sums, since a call of sdpa takes several times as long. Where
    attention is plainly causal, for masks of bool, and for whatever it does not know of, this is transformers' sdpa.

    Args:
        module: the layer, as transformers hands it over.
        query: [B, K * G, M, D].
        key: [B, K, W, D].
        value: [B, K, W, D].
        attention_mask: [B, 1, M, W], added to the scores; None: everything is seen, if M = 1.
        others: scaling, and whatever else a model hands over.

    Returns:
        [B, M, K * G, D], and no weights.
    """
    num_rows, num_heads, num_tokens, size = query.shape
    unknown = any(others.get(each) for each in ("dropout", "softcap")) or others.get("position_bias") is not None
    causal = attention_mask is None and num_tokens > 1
    if unknown or causal or (attention_mask is not None and attention_mask.dtype == torch.bool):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    shared = query.reshape(num_rows, key.shape[1], -1, size)  # [B, K, G * M, D]
    if attention_mask is not None:
        attention_mask = attention_mask.repeat(1, 1, num_heads // key.shape[1], 1)
    scale = others.get("scaling") or size**-0.5
    few = query.device.type == "cpu" and num_rows * num_tokens <= MOST_TOKENS and torch.compiler.is_compiling()
    if few:
        mixed = _sums(shared.float(), key.float(), value.float(), attention_mask, scale).to(query.dtype)
    else:
        mixed = scaled_dot_product_attention(shared, key, value, attn_mask=attention_mask, scale=scale)
    return mixed.reshape(query.shape).transpose(1, 2).contiguous(), None


def _sums(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    scores = (query.unsqueeze(3) * key.unsqueeze(2)).sum(4) * scale
    if mask is not None:
        scores = scores + mask.float()
    return (scores.softmax(3).unsqueeze(4) * value.unsqueeze(2)).sum(3)
