"""Pages of mapped files whose content is kept elsewhere; they leave memory before it runs short."""

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
from torch import Tensor

PAGES = Path("/proc/self/pagemap")  # 64 bits per page of the process
PRESENT, SWAPPED, OF_FILE = (np.uint64(1) << np.uint64(bit) for bit in (63, 62, 61))


def drop_unchanged_pages(tensor: Tensor) -> None:
    """Drop a tensor's pages of a mapped file (on Linux).

    A later use reads them again. A tensor with a page that differs from the file, and one in ordinary memory, stay as
    they are. No other thread may write to the tensor meanwhile.
    """
    first = -(-tensor.data_ptr() // mmap.PAGESIZE)
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE
    if sys.platform != "linux" or tensor.device.type != "cpu" or not tensor.is_contiguous() or first >= end:
        return
    try:
        with PAGES.open("rb") as file:
            file.seek(first * PRESENT.nbytes)
            pages = np.frombuffer(file.read((end - first) * PRESENT.nbytes), dtype=np.uint64)
    except OSError:  # hidden from this process
        return
    is_changed = (pages & SWAPPED != 0) | ((pages & PRESENT != 0) & (pages & OF_FILE == 0))
    if len(pages) == end - first and not is_changed.any():
        address, size = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
