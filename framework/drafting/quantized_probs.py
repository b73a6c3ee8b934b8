"""Quantised draft distributions: rounded before sampling, so that few bytes hold q exactly.

If q were rounded after the draw, the verifier would use another distribution than the one that the token was drawn
from, which is biased. The abstract of arXiv 2507.00605 makes this claim (quantise, then sample); its body is not
verified.
"""

import torch
from torch import Tensor

BITS = (8, 16)


def quantize(probs: Tensor, bits: int) -> Tensor:
    """Round a distribution to integer weights below 2**bits; the most likely entry gets the largest weight.

    Args:
        probs: [..., S] probabilities.
        bits: one of BITS.

    Returns:
        [..., S] of the same dtype, normalised; `to_weights` and `from_weights` reproduce it bit for bit.
    """
    return from_weights(to_weights(probs, bits), probs.dtype)


def to_weights(probs: Tensor, bits: int) -> Tensor:
    """[..., S] int64 in [0, 2**bits), proportional to the distribution [..., S] up to rounding."""
    scaled = probs.double() / probs.double().amax(-1, keepdim=True)
    return (scaled * (2**bits - 1)).round().long()


def from_weights(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., S] the distribution proportional to integer weights [..., S].

    It has the same bits on every machine, because the sum of integers is exact.
    """
    return (weights.double() / weights.sum(-1, keepdim=True).double()).to(dtype)
