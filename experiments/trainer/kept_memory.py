"""Memory that training steps have freed, kept in the process for the next step."""

import ctypes
import sys

# Parameters of mallopt (malloc.h of glibc).
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4
NEVER = -1
GROWTH = 256 * 2**20  # bytes by which the heap grows


def keep_freed_memory() -> None:
    """Make glibc keep freed memory until the process ends; without glibc, do nothing.

    By default it returns the memory of large tensors to the system, which clears every page again for the next step.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((TRIM_THRESHOLD, NEVER), (TOP_PAD, GROWTH), (MMAP_MAX, 0)):
            mallopt(parameter, value)
