"""Drafts and texts as few bytes, and back without loss.

A draft's law becomes whole numbers of 8 or 16 bits where it is made of them (`framework.coarse_law`), and else stays as
it is: what arrives is what was drawn from, to the last bit.
"""

import itertools
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from framework.coarse_law import BITS, from_weights, to_weights
from framework.draft import Draft, Law

DTYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")


def pack(kind: int, arrays: Sequence[np.ndarray]) -> bytes:
    """One message: per array a byte for its dtype, one for its number of axes, four for each, and its entries."""
    parts = [struct.pack("<BB", kind, len(arrays))]
    for array in arrays:
        parts.append(struct.pack(f"<BB{array.ndim}I", DTYPES.index(array.dtype.name), array.ndim, *array.shape))
        parts.append(np.ascontiguousarray(array).tobytes())
    return b"".join(parts)


def unpack(message: bytes) -> tuple[int, list[np.ndarray]]:
    """What `pack` was given."""
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
    """All tokens in one array, and how many each row has."""
    tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return [small(tokens), small(np.array([len(row) for row in rows], np.int64))]


def ragged(tokens: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """The rows again."""
    ends = lengths.astype(np.int64).cumsum()
    return [part.tolist() for part in np.split(tokens, ends[:-1])] if len(ends) else []


def packed_draft(draft: Draft) -> list[np.ndarray]:
    """Tokens, how many of each row are offered, and the law in as few bytes as hold it exactly."""
    tokens = small(draft.tokens.cpu().numpy())
    offered = draft.valid.sum(1).cpu().numpy().astype(np.int32)
    if draft.probs is None:
        return [tokens, small(offered)]
    probs = draft.probs.cpu()
    support = [] if draft.support is None else [small(draft.support.cpu().numpy())]
    is_double = np.array([probs.dtype == torch.float64], np.uint8)
    return [tokens, small(offered), is_double, _packed_law(probs), *support]


def _packed_law(probs: Tensor) -> np.ndarray:
    for bits in BITS:
        weights = to_weights(probs, bits)
        if torch.equal(from_weights(weights, probs.dtype), probs):
            return weights.numpy().astype(f"uint{bits}")
    return probs.numpy()


def unpacked_draft(arrays: list[np.ndarray]) -> Draft:
    """The draft again, to the last bit."""
    tokens, offered = (torch.from_numpy(each.astype(np.int64)) for each in arrays[:2])
    valid = torch.arange(tokens.shape[1]) < offered.unsqueeze(1)
    if len(arrays) == 2:
        return Draft.chain(tokens, Law.ONE_HOT, valid=valid)
    law = arrays[3]
    dtype = torch.float64 if arrays[2][0] else torch.float32
    whole = law.dtype.kind == "u"
    probs = from_weights(torch.from_numpy(law.astype(np.int64)), dtype) if whole else torch.from_numpy(law.copy())
    support = torch.from_numpy(arrays[4].astype(np.int64)) if len(arrays) > 4 else None
    return Draft.chain(tokens, Law.IID, probs=probs, support=support, valid=valid)


def small(numbers: np.ndarray) -> np.ndarray:
    """Of the smallest dtype that holds them."""
    most = numbers.max(initial=0)
    return numbers.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.int32)
