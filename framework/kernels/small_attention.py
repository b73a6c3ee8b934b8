"""Attention of few tokens over shared keys, as an operator of compiled graphs on a CPU (`small_attention.cpp`)."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from framework.kernels import cpp_operators

NAME = "small_attention"


@torch.compiler.assume_constant_result
def is_available() -> bool:
    """Whether the operator can be compiled on this machine; warns once if it cannot."""
    return cpp_operators.is_available(NAME) and _is_registered()


@cache
def _is_registered() -> bool:
    cpp_operators.operators(NAME)
    torch.library.register_fake("outrider::small_attention", _empty)
    return True


def _empty(query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
    num_rows, num_heads, num_tokens, _ = query.shape
    return query.new_empty(num_rows, num_tokens, num_heads, value.shape[3])


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """Grouped-query attention; call `is_available` first. Sums are in float32, for float64 in float64.

    Args:
        query: [B, K * G, M, D]; all tensors are on a CPU.
        key: [B, K, W, D].
        value: [B, K, W, E].
        mask: added to the scores, broadcast to [B, K * G, M, W]; None: every slot is seen.
        sinks: [K * G] logits of an extra key without a value, per head; None: no such key.
        scale: factor of the scores.
        softcap: scores become softcap * tanh(score / softcap); None: they stay.

    Returns:
        [B, M, K * G, E], contiguous.
    """
    mixed: Tensor = torch.ops.outrider.small_attention(query, key, value, mask, sinks, scale, softcap or 0.0)
    return mixed
