"""Texts from plain text files."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from framework.core.option_error import MissingFileError, OptionError
from framework.prompts.prompt_source import Text

SPLITS = ("file", "line", "paragraph")


class PlainText:
    """Files, lines or paragraphs of one UTF-8 file or of a folder of such files, sorted by path."""

    def __init__(self, *, path: str, glob: str, split_on: str):
        """
        Args:
            path: a file, or a folder.
            glob: pattern of the files to read in a folder, such as "*.txt", or "**/*.txt" to include its subfolders.
            split_on: unit of one text: "file", "line", or "paragraph", which ends at a blank line. Blank units are
                skipped. Lines and paragraphs do not include their final line end.

        Raises:
            ValueError: an empty path, an unknown unit, or an invalid glob.
            FileNotFoundError: no such file or folder, or no file in the folder that matches the glob.
        """
        if split_on not in SPLITS:
            raise OptionError("split_on", split_on, f"{', '.join(SPLITS)}")
        if not path:
            raise OptionError("path", path, "a file or a folder")
        self.path = Path(path).expanduser().absolute()
        self.split_on = split_on
        if not self.path.exists():
            raise MissingFileError("path", path, "a file or a folder", "no such file or folder")
        self.category = self.path.stem if self.path.is_file() else self.path.name
        self.files = [self.path] if self.path.is_file() else self._files(glob)

    def texts(self) -> Iterator[Text]:
        """Yield the texts, named by file and first line.

        The category is the folder directly below `path`, or the name of `path` itself for files directly in it.

        Raises:
            ValueError: a file is not UTF-8, or all lines are blank.
        """
        num_texts = 0
        for file in self.files:
            inside = file.relative_to(self.path).parts or (file.name,)
            category = inside[0] if len(inside) > 1 else self.category
            for number, text in self._pieces(file):
                num_texts += 1
                name = "/".join(inside) + ("" if self.split_on == "file" else f":{number}")
                yield Text(name=name, category=category, text=text)
        if num_texts == 0:
            raise OptionError("path", str(self.path), "at least one line that is not blank", "which holds no text")

    def _files(self, glob: str) -> list[Path]:
        try:
            files = sorted(path for path in self.path.glob(glob) if path.is_file())
        except (ValueError, NotImplementedError) as error:
            raise OptionError("glob", glob, "a pattern such as *.txt", str(error)) from error
        if not files:
            raise MissingFileError("glob", glob, "a pattern such as *.txt", f"no file in {self.path} fits it")
        return files

    def _pieces(self, file: Path) -> Iterator[tuple[int, str]]:
        """Texts of a file, each with the number of its first line."""
        if self.split_on == "file":
            text = "".join(line for _, line in numbered_lines(file))
            if text.strip():
                yield 1, text
            return
        for is_blank, group in groupby(numbered_lines(file), key=lambda numbered: not numbered[1].strip()):
            if is_blank:
                continue
            if self.split_on == "line":
                yield from ((number, line.removesuffix("\n")) for number, line in group)
            else:
                lines = list(group)
                yield lines[0][0], "".join(line for _, line in lines).removesuffix("\n")


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a file, with line ends converted to \\n and without a byte order mark.

    Raises:
        ValueError: the file is not UTF-8.
    """
    offset = 0
    # Read as bytes: lines end at \n only, and the offset of an invalid byte is known.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                problem = f"which is not UTF-8: byte {offset + error.start} cannot be read ({error.reason})"
                raise OptionError("path", str(file), "text in UTF-8", problem) from error
            offset += len(line)
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text[:-2] + "\n" if text.endswith("\r\n") else text
