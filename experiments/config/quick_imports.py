"""Imports of PyTorch and Transformers in less time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any

LISTING = "create_import_structure_from_path"  # a private function of Transformers


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Run without garbage collection; later collections skip the objects that exist at the end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


@cache
def list_models_once() -> None:
    """Import Transformers, and let it keep the list of its models.

    It reads some 3,000 files of its own for the list, once for `transformers` and once for `transformers.models`, which
    name the same folder in two ways. One name for both saves 0.3 s.
    """
    from transformers.utils import import_utils

    list_folder: Any = getattr(import_utils, LISTING, None)
    if list_folder is None:  # in another version
        return

    @wraps(list_folder)
    def list_by_folder(path: str | Path) -> Any:
        return list_folder(Path(path).parent if Path(path).is_file() else Path(path))

    setattr(import_utils, LISTING, list_by_folder)
