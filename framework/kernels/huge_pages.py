"""Tensors in huge pages: a stream of weights misses the processor's page table 512 times less often."""

import mmap
from contextlib import suppress
from threading import Lock

import torch
from torch import Tensor

CHUNK = 64 * 2**20  # bytes; memory is taken when it is written
ALIGNMENT = 64  # bytes, a line of the cache


def in_huge_pages(tensor: Tensor) -> Tensor:
    """A copy of a tensor in huge pages, where the system has them; elsewhere the tensor itself."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return tensor
    copy = _CHUNKS.room(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)


class _Chunks:
    """Memory for many tensors, chunk by chunk; a chunk is freed with the last of its tensors."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._lock = Lock()

    def room(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 that no other tensor uses."""
        with self._lock:
            if self._used + num_bytes > len(self._chunk):
                self._chunk, self._used = _new_chunk(max(CHUNK, num_bytes)), 0
            first = self._used
            self._used += num_bytes + -num_bytes % ALIGNMENT
            return self._chunk[first : first + num_bytes]


def _new_chunk(num_bytes: int) -> Tensor:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


_CHUNKS = _Chunks()
