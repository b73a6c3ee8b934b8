"""Files that exist as a whole or not at all."""

from collections.abc import Callable
from pathlib import Path


def write_whole(file: Path, write: Callable[[Path], object]) -> None:
    """Replace a file in one step, so that a kill leaves the old one or the new one.

    Args:
        file: its folder is created if missing. One process at a time may write it.
        write: writes the contents to the path that it gets, beside the file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".new")  # the next attempt overwrites what a kill leaves
    write(unfinished)
    unfinished.replace(file)  # atomic
