"""Laws of few bits, which travel in few bytes: rounded first and drawn from afterwards, they are what was drawn from.

Rounding after the draw would make the verifier judge by a law that the token does not have, which is biased (quantise,
then sample: Zheng et al., 2025, 2512.16273).
"""

import torch
from torch import Tensor

BITS = (8, 16)


def coarse(probs: Tensor, bits: int) -> Tensor:
    """The law proportional to whole numbers below 2**bits, the likeliest entry having the largest.

    Args:
        probs: [..., S] masses.
        bits: one of BITS.

    Returns:
        [..., S] of the same dtype, bit for bit what `from_weights` makes of `to_weights` of it.
    """
    return from_weights(to_weights(probs, bits), probs.dtype)


def to_weights(probs: Tensor, bits: int) -> Tensor:
    """[..., S] int64 in [0, 2**bits): in proportion to the law [..., S], as far as they can be."""
    scaled = probs.double() / probs.double().amax(-1, keepdim=True)
    return (scaled * (2**bits - 1)).round().long()


def from_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., S] the law that is proportional to them: the same bits on every machine, for their sum is exact."""
    return (weights.double() / weights.sum(-1, keepdim=True).double()).to(dtype)
