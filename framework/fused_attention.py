"""Attention of a few tokens as plain sums, which a compiler makes one kernel of.

B rows, M tokens read, W slots seen, G heads that share keys and values, K of those, D their size.
"""

from typing import Any

import torch
from torch import Tensor
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
    """Sums in compiled programs on a CPU, where a call of sdpa for a few tokens takes several times as long.

    Elsewhere, and for whatever these sums do not know of, this is transformers' sdpa.

    Args:
        module: the layer, as transformers hands it over.
        query: [B, K * G, M, D].
        key: [B, K, W, D].
        value: [B, K, W, D].
        attention_mask: [B, 1, M, W], added to the scores.
        others: scaling, and whatever else a model hands over.

    Returns:
        [B, M, K * G, D], and no weights.
    """
    num_tokens = query.shape[0] * query.shape[2]
    few = query.device.type == "cpu" and num_tokens <= MOST_TOKENS and torch.compiler.is_compiling()
    known = others.get("position_bias") is None and others.get("softcap") is None
    if not (few and known) or attention_mask is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    scale = others.get("scaling") or query.shape[3] ** -0.5
    grouped = query.unflatten(1, (key.shape[1], -1)).unsqueeze(4).float()  # [B, K, G, M, 1, D]
    scores = (grouped * key[:, :, None, None].float()).sum(5) * scale + attention_mask.unsqueeze(2).float()
    mixed = (scores.softmax(4).unsqueeze(5) * value[:, :, None, None].float()).sum(4)
    return mixed.flatten(1, 2).transpose(1, 2).to(query.dtype).contiguous(), None
