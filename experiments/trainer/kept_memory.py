"""Memory that training steps free, kept in the process for the next step."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of mallopt (malloc.h of glibc): values while memory is kept, and glibc's defaults.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
KEPT = {TRIM_THRESHOLD: -1, TOP_PAD: 256 * 2**20, MMAP_MAX: 0}
DEFAULTS = {TRIM_THRESHOLD: 128 * 2**10, TOP_PAD: 128 * 2**10, MMAP_MAX: 65536}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep memory that the block frees until the block ends; without glibc, do nothing.

    By default glibc returns the memory of large tensors to the system, which clears every page again for the next step.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    _set(library, KEPT)
    try:
        yield
    finally:
        _set(library, DEFAULTS)
        library.malloc_trim(0)


def _set(library: ctypes.CDLL, values: dict[int, int]) -> None:
    for parameter, value in values.items():
        library.mallopt(parameter, value)
