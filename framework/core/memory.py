"""Memory of the host: zeros in pages of their own, and freed memory that the process keeps."""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

LARGEST_KEPT = 2**25 - 2**16  # bytes: glibc's own limit, less some for its bookkeeping


def mapped_zeros(shape: Sequence[int], dtype: torch.dtype, *, in_huge_pages: bool) -> Tensor:
    """Zeros in pages that the system provides when they are first written, and unmaps with the tensor.

    Args:
        shape: without a 0.
        dtype: of the zeros.
        in_huge_pages: whether to ask for pages of 2 MiB rather than 4 KiB, where the system has them.
    """
    private = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}  # Windows has no such flag
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, **private)
    advice = getattr(mmap, "MADV_HUGEPAGE" if in_huge_pages else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):  # of a kernel without huge pages
            memory.madvise(advice)
    with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside it
        return torch.frombuffer(memory, dtype=dtype).view(*shape)


def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors of up to 32 MiB, which later ones then use again.

    By default it maps larger tensors apart, and the system clears every page of the next one. Its limit rises to the
    size of the largest such tensor that was freed.
    """
    torch.empty(LARGEST_KEPT, dtype=torch.uint8, device="cpu")  # freed at once
