"""Imports of PyTorch and Transformers in less time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any


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
    it finds by a folder and by a file in it; now both find the same list, 0.3 s earlier.
    """
    from transformers.utils import import_utils

    names_of: Any = import_utils.create_import_structure_from_path

    @wraps(names_of)
    def names_of_folder(path: str | Path) -> Any:
        return names_of(Path(path).parent if Path(path).is_file() else Path(path))

    import_utils.create_import_structure_from_path = names_of_folder
