"""Folder of files that outlive a run and can be made again: profiles of rounds, converted models."""

import os
from pathlib import Path

FOLDER = "OUTRIDER_CACHE"  # environment variable of the folder


def cache_folder() -> Path:
    """The folder that OUTRIDER_CACHE names, else `outrider` in the user's cache."""
    if given := os.environ.get(FOLDER):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"
