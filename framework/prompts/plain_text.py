"""Texts from plain text files."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from framework.prompts.prompt_source import Text, key

SPLITS = ("file", "line", "paragraph")


class PlainText:
    """The files, lines or paragraphs of one UTF-8 file or of a folder of them, sorted by path."""

    def __init__(self, *, path: str, glob: str, split_on: str):
        """
        Args:
            path: a file, or a folder.
            glob: which files of a folder to read, such as "*.txt", or "**/*.txt" for those of its folders, too.
            split_on: what is one text: "file"; "line"; or "paragraph", which a blank line ends. Blank ones are passed
                over, and the line ends of lines and paragraphs are no part of them.

        Raises:
            ValueError: no path, an unknown split, or a glob that is no pattern.
            FileNotFoundError: no such file or folder, or no file in it that fits the glob.
        """
        if split_on not in SPLITS:
            raise ValueError(f"{key('split_on')} is {split_on!r}; allowed: {', '.join(SPLITS)}")
        if not path:
            raise ValueError(f"{key('path')} is {path!r}; allowed: a file or a folder")
        self.path = Path(path).expanduser().absolute()
        self.split_on = split_on
        if not self.path.exists():
            raise FileNotFoundError(f"{key('path')} is {path!r}: no such file or folder")
        self.category = self.path.stem if self.path.is_file() else self.path.name
        self.files = [self.path] if self.path.is_file() else self._files(glob)

    def texts(self) -> Iterator[Text]:
        """Yield the texts, named by file and first line.

        The category is the folder directly below `path`, or the name of `path` itself for what lies directly in it.

        Raises:
            ValueError: a file is not UTF-8, or there is nothing but blank lines.
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
            raise ValueError(f"{self.path} holds no text; {key('path')} needs at least one line that is not blank")

    def _files(self, glob: str) -> list[Path]:
        try:
            files = sorted(path for path in self.path.glob(glob) if path.is_file())
        except (ValueError, NotImplementedError) as error:
            raise ValueError(f"{key('glob')} is {glob!r}: {error}; allowed: a pattern such as *.txt") from error
        if not files:
            raise FileNotFoundError(f"{key('glob')} is {glob!r}: no file in {self.path} fits it")
        return files

    def _pieces(self, file: Path) -> Iterator[tuple[int, str]]:
        """The texts of a file, each with the number of its first line."""
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
    """The numbered lines of a file with their ends, which become \\n; a byte order mark is dropped.

    Raises:
        ValueError: the file is not UTF-8.
    """
    offset = 0
    # Bytes: a line ends at \n only, and the place of a wrong byte is known.
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{file} is not UTF-8: byte {offset + error.start} cannot be read ({error.reason}); "
                    f"see {key('path')}"
                ) from error
            offset += len(line)
            if number == 1:
                text = text.removeprefix("\ufeff")
            yield number, text[:-2] + "\n" if text.endswith("\r\n") else text
