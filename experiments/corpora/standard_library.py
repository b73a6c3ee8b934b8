"""Python's standard library as text that every Python installation has."""

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from framework.core.option_error import OptionError
from framework.prompts.prompt_source import Text

# Tables and bundled copies: text that would be memorised, or that is not typical Python code.
SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "__pycache__", "encodings", "ensurepip",
    "pydoc_data", "test", "tests", "idlelib", "lib2to3", "distutils",
}  # fmt: skip
HELD_OUT_SHARE = 8  # one file in this many
MIN_CHARACTERS = 2000


def is_held_out(relative_path: str) -> bool:
    """Whether a standard-library file is held out.

    A hash of its path decides, so the split is equal on every machine.
    """
    return hashlib.sha256(relative_path.encode()).digest()[0] % HELD_OUT_SHARE == 0


class StandardLibrary:
    """Files of the standard library, split into training and held-out files by a hash of the path."""

    def __init__(self, *, split: str, folder: str | None = None):
        """
        Args:
            split: "held_out" or "train".
            folder: folder of the library; None: that of the running Python.

        Raises:
            ValueError: an unknown split.
            FileNotFoundError: this Python ships without its sources.
        """
        if split not in ("held_out", "train"):
            raise OptionError("split", split, "held_out, train")
        self.split = split
        self.folder = Path(folder or sysconfig.get_paths()["stdlib"])
        if not (self.folder / "argparse.py").exists():
            why = "this Python ships without them" if folder is None else "the folder given is no such library"
            raise FileNotFoundError(
                f"no standard-library sources in {self.folder}: {why}. "
                "Choose another source, for example prompts=jsonl prompts.source.path=FILE"
            )

    def texts(self) -> Iterator[Text]:
        """Yield the files of this split, sorted by path; the category is the top-level package or "modules"."""
        for path in sorted(self.folder.rglob("*.py")):
            relative = path.relative_to(self.folder)
            if SKIPPED_FOLDERS & set(relative.parts) or relative.parts[0].startswith("config-"):
                continue
            if is_held_out(relative.as_posix()) != (self.split == "held_out"):
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            if len(text) >= MIN_CHARACTERS:
                category = relative.parts[0] if len(relative.parts) > 1 else "modules"
                yield Text(name=relative.as_posix(), category=category, text=text)
