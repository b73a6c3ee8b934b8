"""Lossless serialisation of drafts and texts in few bytes; messages hold arrays and JSON only.

A draft's distribution is sent as integers of 8 or 16 bits if it was quantised to these
(`framework.drafting.quantized_probs`), otherwise unchanged; tokens without mass are left out if that saves bytes. The
receiver gets q to the last bit.
"""

import itertools
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.draft_faults import probs_fault, structure_fault
from framework.drafting.quantized_probs import BITS, from_weights, to_weights

DTYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")
MOST_AXES = 3


class MalformedMessage(ConnectionError):
    """A message that the other process cannot have meant; the text names the fault."""


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
    """Kind and arrays of a message from `pack`.

    Raises:
        MalformedMessage: the message is not exactly one kind and the arrays that it announces.
    """
    arrays = []
    try:
        kind, number = struct.unpack_from("<BB", message)
        place = 2
        for index in range(number):
            dtype, axes = struct.unpack_from("<BB", message, place)
            if dtype >= len(DTYPES) or axes > MOST_AXES:
                raise MalformedMessage(f"array {index} has dtype {dtype} and {axes} axes")
            shape = struct.unpack_from(f"<{axes}I", message, place + 2)
            place += 2 + 4 * axes
            num_bytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
            if num_bytes > len(message) - place:
                raise MalformedMessage(f"array {index} of shape {shape} is longer than its message")
            arrays.append(np.frombuffer(message[place : place + num_bytes], DTYPES[dtype]).reshape(shape))
            place += num_bytes
    except (struct.error, ValueError) as error:
        raise MalformedMessage("it ends within an array's header, or a shape is impossible") from error
    if place != len(message):
        raise MalformedMessage(f"{len(message) - place} bytes follow the last array")
    return kind, arrays


def as_json(facts: Any) -> np.ndarray:
    """Array of the JSON text of some facts."""
    return np.frombuffer(json.dumps(facts, default=repr).encode(), np.uint8)


def from_json(array: np.ndarray) -> Any:
    """Facts from the array of `as_json`.

    Raises:
        MalformedMessage: the array holds no JSON text.
    """
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("its facts are not JSON") from error


def expect(arrays: Sequence[np.ndarray], *shapes: tuple[int | None, ...]) -> None:
    """Check the number of arrays and their shapes; None: any size.

    Raises:
        MalformedMessage: a shape differs.
    """
    got = [array.shape for array in arrays]
    fits = len(got) == len(shapes) and all(
        len(shape) == len(wanted) and all(size in (given, None) for given, size in zip(shape, wanted, strict=True))
        for shape, wanted in zip(got, shapes, strict=True)
    )
    if not fits:
        raise MalformedMessage(f"its arrays have the shapes {got}, not {list(shapes)}")


def whole(numbers: np.ndarray, name: str, least: int, most: int | np.ndarray) -> np.ndarray:
    """The numbers as int64, each a whole number from `least` to `most`.

    Raises:
        MalformedMessage: one is not.
    """
    if numbers.dtype.kind not in "iu" or not ((numbers >= least) & (numbers <= most)).all():
        raise MalformedMessage(f"{name} holds other numbers than whole ones from {least} to {most}")
    return numbers.astype(np.int64)


def flat(rows: list[list[int]]) -> list[np.ndarray]:
    """All tokens in one array, and the number of tokens per row."""
    tokens = np.fromiter(itertools.chain.from_iterable(rows), np.int64)
    return [small(tokens), small(np.array([len(row) for row in rows], np.int64))]


def ragged(tokens: np.ndarray, lengths: np.ndarray, *, vocabulary_size: int) -> list[list[int]]:
    """Rows of the two arrays of `flat`.

    Raises:
        MalformedMessage: the lengths do not add up to the tokens, or a token is outside the vocabulary.
    """
    expect([tokens, lengths], (None,), (None,))
    ends = whole(lengths, "a text's length", 0, len(tokens)).cumsum()
    if (ends[-1] if len(ends) else 0) != len(tokens):
        raise MalformedMessage(f"its texts do not have {len(tokens)} tokens")
    tokens = whole(tokens, "a text", 0, vocabulary_size - 1)
    return [part.tolist() for part in np.split(tokens, ends[:-1])] if len(ends) else []


def packed_draft(draft: Draft) -> list[np.ndarray]:
    """Tokens, structure, and the distributions in the fewest bytes that hold them exactly.

    The structure of a chain is the number of offered nodes per row; that of a tree are the offered nodes and the
    parents, once if all rows share them. Siblings then share one distribution.
    """
    structure = [small(draft.tokens.cpu().numpy())]
    nodes: Any = slice(None)
    if draft.shape is Shape.CHAIN:
        structure.append(small(draft.valid.sum(1).cpu().numpy()))
    else:
        rows = (draft.parent + 1).cpu().numpy()
        rows = rows[:1] if (rows == rows[:1]).all() else rows
        nodes, _ = _sent_nodes(rows)
        structure += [draft.valid.cpu().numpy().astype(np.uint8), small(rows)]
    if draft.probs is None:
        return structure
    probs = _packed_probs(draft.probs.cpu()[:, nodes])
    support = None if draft.support is None else draft.support.cpu()[:, nodes].numpy()
    is_double = draft.probs.dtype == torch.float64
    whole_rows = [np.array([is_double], np.uint8), probs, *([] if support is None else [small(support)])]
    candidates = (whole_rows, _without_zeros(is_double, probs, support))
    return [*structure, *min(candidates, key=lambda arrays: sum(array.nbytes for array in arrays))]


def _sent_nodes(parents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes whose distributions are sent, and the index of each node's own among them; parents [1, N] or [B, N]."""
    if len(parents) != 1:
        every = np.arange(parents.shape[1])
        return every, every
    _, first, place = np.unique(parents[0], return_index=True, return_inverse=True)
    return first, place


def _without_zeros(is_double: bool, probs: np.ndarray, support: np.ndarray | None) -> list[np.ndarray]:
    """Sizes, numbers of entries sent per node, and these entries with their token ids."""
    sent = probs != 0
    if support is not None:  # up to the last entry with mass, so that entries keep their place
        sent = np.logical_or.accumulate(sent[..., ::-1], 2)[..., ::-1]
    ids = np.nonzero(sent)[2] if support is None else support[sent]
    sizes = np.array([is_double, support is not None, probs.shape[2]], np.int32)
    return [sizes, small(sent.sum(2)), probs[sent], small(ids)]


def _packed_probs(probs: Tensor) -> np.ndarray:
    for bits in BITS:
        weights = to_weights(probs, bits)
        if torch.equal(from_weights(weights, probs.dtype), probs):
            return weights.numpy().astype(f"uint{bits}")
    return probs.numpy()


@dataclass(frozen=True)
class DraftFacts:
    """Facts about the drafts of a remote drafter that both processes know.

    Attributes:
        scheme: the drafter's sampling scheme.
        shape: the drafter's shape.
        num_rows: B.
        gamma: largest depth.
        most_nodes: largest number of nodes.
        vocabulary_size: V.
    """

    scheme: SamplingScheme
    shape: Shape
    num_rows: int
    gamma: int
    most_nodes: int
    vocabulary_size: int


def unpacked_draft(arrays: list[np.ndarray], facts: DraftFacts) -> Draft:
    """Draft from the arrays of `packed_draft`, equal to the last bit.

    Raises:
        MalformedMessage: the arrays are no draft with these facts.
    """
    number = 2 if facts.shape is Shape.CHAIN else 3
    structure, sent = arrays[:number], arrays[number:]
    if len(sent) not in (0, 2, 3, 4):
        raise MalformedMessage(f"a draft has {len(arrays)} arrays")
    if structure[0].ndim != 2 or structure[0].shape[1] > facts.most_nodes:
        raise MalformedMessage(f"a draft has the shape {structure[0].shape}; allowed: {facts.most_nodes} nodes")
    rows, num_nodes = facts.num_rows, structure[0].shape[1]
    tokens = torch.from_numpy(whole(structure[0], "a draft", 0, facts.vocabulary_size - 1))
    num_sent, place = num_nodes, np.arange(num_nodes)  # distributions, and that of each node
    if facts.shape is Shape.CHAIN:
        expect(structure, (rows, num_nodes), (rows,))
        offered = torch.from_numpy(whole(structure[1], "the number of offered nodes", 0, num_nodes))
        draft = Draft.chain(tokens, SamplingScheme.ONE_HOT, valid=torch.arange(num_nodes) < offered.unsqueeze(1))
    else:
        expect(structure, (rows, num_nodes), (rows, num_nodes), (None, num_nodes))
        if len(structure[2]) not in (1, rows):
            raise MalformedMessage(f"a draft has the parents of {len(structure[2])} rows")
        nodes, place = _sent_nodes(structure[2])
        num_sent = len(nodes)
        parent = torch.from_numpy(whole(structure[2], "a draft's parents", 0, num_nodes) - 1).expand(rows, -1)
        valid = torch.from_numpy(whole(structure[1], "the offered nodes", 0, 1)).bool()
        draft = Draft(tokens, parent, valid, SamplingScheme.ONE_HOT, shape=facts.shape)
    if sent:
        probs, support = _unpacked_distributions(sent, (rows, num_sent), facts.vocabulary_size)
        support = None if support is None else support[:, place]
        draft = replace(draft, scheme=facts.scheme, probs=probs[:, place], support=support)
    if fault := structure_fault(draft) or probs_fault(draft):
        raise MalformedMessage(fault)
    if num_nodes and int(draft.tree.depth.max()) > facts.gamma:
        raise MalformedMessage(f"a draft is deeper than {facts.gamma}")
    return draft


def _unpacked_distributions(
    sent: list[np.ndarray], nodes: tuple[int, int], vocabulary_size: int
) -> tuple[Tensor, Tensor | None]:
    """Distributions [B, N, S] of so many rows and nodes, and their support."""
    if len(sent) == 4:
        sent = _with_zeros(sent, nodes, vocabulary_size)
    expect(sent[:2], (1,), (*nodes, vocabulary_size if len(sent) == 2 else None))
    probs = _unpacked_probs(sent[1], torch.float64 if sent[0][0] else torch.float32)
    if not probs.isfinite().all():
        raise MalformedMessage("a distribution is not finite")
    if len(sent) == 2:
        return probs, None
    expect(sent[2:], sent[1].shape)
    return probs, torch.from_numpy(whole(sent[2], "a support", 0, vocabulary_size - 1))


def _with_zeros(arrays: list[np.ndarray], nodes: tuple[int, int], vocabulary_size: int) -> list[np.ndarray]:
    """The arrays of `packed_draft` with all entries, from those of `_without_zeros`; ids of entries left out are 0."""
    expect(arrays, (3,), nodes, (None,), (None,))
    is_double, has_support, width = whole(arrays[0], "a draft's sizes", 0, vocabulary_size).tolist()
    entries, numbers = arrays[2], whole(arrays[1], "the number of entries", 0, width)
    ids = whole(arrays[3], "a support", 0, vocabulary_size - 1)
    if not numbers.sum() == len(entries) == len(ids) or not (has_support or width == vocabulary_size):
        raise MalformedMessage("a draft has more or fewer entries than announced")
    is_sent = np.arange(width) < numbers[..., None]
    probs = np.zeros((*nodes, width), entries.dtype)
    if not has_support:
        probs[(*np.nonzero(is_sent)[:2], ids)] = entries
        return [np.array([is_double], np.uint8), probs]
    probs[is_sent], support = entries, np.zeros(probs.shape, np.int64)
    support[is_sent] = ids
    return [np.array([is_double], np.uint8), probs, support]


def _unpacked_probs(sent: np.ndarray, dtype: torch.dtype) -> Tensor:
    if sent.dtype.kind == "u":
        return from_weights(torch.from_numpy(sent.astype(np.int64)), dtype)
    if sent.dtype.kind != "f":
        raise MalformedMessage("a distribution holds signed whole numbers")
    return torch.from_numpy(sent.astype(np.float64 if dtype == torch.float64 else np.float32))


def small(numbers: np.ndarray) -> np.ndarray:
    """The same numbers, >= 0, in the smallest of uint8, uint16 and int32 that holds them."""
    most = numbers.max(initial=0)
    return numbers.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.int32)
