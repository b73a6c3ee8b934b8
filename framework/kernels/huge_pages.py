"""Tensors in huge pages, for fewer misses of the processor's address cache (TLB): one entry maps 2 MiB, not 4 KiB."""

import mmap
from threading import Lock

import torch
from torch import Tensor

from framework.core.memory import mapped_zeros

CHUNK = 64 * 2**20  # bytes; memory is taken when it is written
ALIGNMENT = 64  # bytes, a line of the cache


def in_huge_pages(tensors: list[Tensor]) -> Tensor:
    """A copy of tensors, one below the other, in huge pages.

    On a system without them: an ordinary copy.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.cat(tensors)
    shape = (sum(map(len, tensors)), *tensors[0].shape[1:])
    room = _CHUNKS.room(sum(tensor.nbytes for tensor in tensors))
    copy = room.view(tensors[0].dtype).view(shape)
    return torch.cat(tensors, out=copy)


class _Chunks:
    """Memory for many tensors, chunk by chunk; all but the latest chunk are freed with the last of their tensors."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._lock = Lock()

    def room(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 that no other tensor uses."""
        if num_bytes > CHUNK // 2:
            return _new_chunk(num_bytes)  # freed with its tensor
        with self._lock:
            if self._used + num_bytes > len(self._chunk):
                self._chunk, self._used = _new_chunk(CHUNK), 0
            first = self._used
            self._used += num_bytes + -num_bytes % ALIGNMENT
            return self._chunk[first : first + num_bytes]


def _new_chunk(num_bytes: int) -> Tensor:
    return mapped_zeros((num_bytes,), torch.uint8, in_huge_pages=True)


_CHUNKS = _Chunks()
