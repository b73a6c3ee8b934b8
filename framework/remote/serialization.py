"""Lossless serialisation of drafts and texts in few bytes.

A draft's distribution is sent as integers of 8 or 16 bits if it was quantised to these
(`framework.drafting.quantized_probs`), otherwise unchanged. The receiver gets q to the last bit.
"""

import itertools
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme
from framework.drafting.quantized_probs import BITS, from_weights, to_weights

DTYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")


def pack(kind: int, arrays: Sequence[np.ndarray]) -> bytes:
    """Bytes of one message: kind, number of arrays, and the arrays.

    Kind and number take one byte each. An array takes a byte for its dtype, one for its number of axes, four for the
    size of each axis, and its entries.
    """
    parts = [struct.pack("<BB", kind, len(arrays))]
    for array in arrays:
        parts.append(struct.pack(f"<BB{array.ndim}I", DTYPES.index(array.dtype.name), array.ndim, *array.shape))
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def unpack(message: bytes) -> tuple[int, list[np.ndarray]]:
    """Kind and arrays of a message from `pack`."""
    kind, number = struct.unpack_from("<BB", message)
    arrays, place = [], 2
    for _ in range(number):
        dtype, axes = struct.unpack_from("<BB", message, place)
        shape = struct.unpack_from(f"<{axes}I", message, place + 2)
        place += 2 + 4 * axes
        entries = np.frombuffer(message, DTYPES[dtype], count=int(np.prod(shape)), offset=place)
        arrays.append(entries.reshape(shape))
        place += entries.nbytes
    return kind, arrays


def flat(rows: list[list[int]]) -> list[np.ndarray]:
    """All tokens in one array, and the number of tokens per row."""
    tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return [small(tokens), small(np.array([len(row) for row in rows], np.int64))]


def ragged(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """Rows of the two arrays of `flat`."""
    ends = lengths.astype(np.int64).cumsum()
    return [part.tolist() for part in np.split(tokens, ends[:-1])] if len(ends) else []


def packed_draft(draft: Draft) -> list[np.ndarray]:
    """Tokens, offered nodes per row, and the distribution in the fewest bytes that hold it exactly."""
    tokens = small(draft.tokens.cpu().numpy())
    offered = draft.valid.sum(1).cpu().numpy().astype(np.int32)
    if draft.probs is None:
        return [tokens, small(offered)]
    probs = draft.probs.cpu()
    support = [] if draft.support is None else [small(draft.support.cpu().numpy())]
    is_double = np.array([probs.dtype == torch.float64], np.uint8)
    return [tokens, small(offered), is_double, _packed_probs(probs), *support]


def _packed_probs(probs: Tensor) -> np.ndarray:
    for bits in BITS:
        weights = to_weights(probs, bits)
        if torch.equal(from_weights(weights, probs.dtype), probs):
            return weights.numpy().astype(f"uint{bits}")
    return probs.numpy()


def unpacked_draft(arrays: list[np.ndarray]) -> Draft:
    """Draft from the arrays of `packed_draft`, equal to the last bit."""
    tokens, offered = (torch.from_numpy(each.astype(np.int64)) for each in arrays[:2])
    valid = torch.arange(tokens.shape[1]) < offered.unsqueeze(1)
    if len(arrays) == 2:
        return Draft.chain(tokens, SamplingScheme.ONE_HOT, valid=valid)
    distribution = arrays[3]
    dtype = torch.float64 if arrays[2][0] else torch.float32
    whole = distribution.dtype.kind == "u"
    probs = (
        from_weights(torch.from_numpy(distribution.astype(np.int64)), dtype)
        if whole
        else torch.from_numpy(distribution.copy())
    )
    support = torch.from_numpy(arrays[4].astype(np.int64)) if len(arrays) > 4 else None
    return Draft.chain(tokens, SamplingScheme.IID, probs=probs, support=support, valid=valid)


def small(numbers: np.ndarray) -> np.ndarray:
    """The same numbers, >= 0, in the smallest of uint8, uint16 and int32 that holds them."""
    most = numbers.max(initial=0)
    return numbers.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.int32)
