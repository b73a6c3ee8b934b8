"""Notes of passed contract checks: an empty file per class and version of its source file."""

import hashlib
import inspect
from contextlib import suppress
from pathlib import Path

FOLDER = Path("outputs", "passed_checks")  # below the current folder, like all output


def note_passed(drafter_class: type) -> None:
    """Leave a note that a class passed its check; nothing happens if it cannot be written."""
    with suppress(OSError, TypeError):
        note = _note(drafter_class)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def has_passed(drafter_class: type) -> bool:
    """Whether a class passed its check, in this version of its source file."""
    with suppress(OSError, TypeError):
        return _note(drafter_class).exists()
    return False


def _note(drafter_class: type) -> Path:
    """
    Raises:
        OSError, TypeError: the class has no source file.
    """
    return FOLDER / f"{drafter_class.__module__}.{drafter_class.__qualname__}-{source_version(drafter_class)}"


def source_version(part_class: type) -> str:
    """16 hex digits that identify the source file of a class.

    Raises:
        OSError, TypeError: the class has no source file.
    """
    return hashlib.sha256(Path(inspect.getfile(part_class)).read_bytes()).hexdigest()[:16]
