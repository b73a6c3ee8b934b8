"""Pairs of texts and references from two files aligned line by line, such as a corpus of translations."""

from collections.abc import Iterator
from pathlib import Path

from framework.core.option_error import MissingFileError, OptionError
from framework.prompts.plain_text import numbered_lines
from framework.prompts.prompt_source import Text


class ParallelText:
    """Line n of one UTF-8 file as text, with line n of another as its reference answer."""

    def __init__(self, *, path: str, reference_path: str):
        """
        Args:
            path: file of the texts, one per line.
            reference_path: file of the reference answers. Pairs with a blank line on either side are skipped.

        Raises:
            FileNotFoundError: no such file; the message names the yaml key.
        """
        self._files = [Path(each).expanduser() for each in (path, reference_path)]
        for option, given, file in zip(("path", "reference_path"), (path, reference_path), self._files, strict=True):
            if not file.is_file():
                raise MissingFileError(option, given, "a file with one text per line", "no such file")

    def texts(self) -> Iterator[Text]:
        """Yield the texts with their references, named by file and line.

        Raises:
            ValueError: a file is not UTF-8, the files differ in their number of lines, or there is no pair.
        """
        asked, answered = ([line.strip() for _, line in numbered_lines(file)] for file in self._files)
        if len(asked) != len(answered):
            problem = f"with {len(asked)} lines, and {self._files[1]} has {len(answered)}"
            allowed = "files that are aligned line by line (path, reference_path)"
            raise OptionError("path", str(self._files[0]), allowed, problem)
        pairs = [(n, *pair) for n, pair in enumerate(zip(asked, answered, strict=True), start=1) if all(pair)]
        if not pairs:
            allowed = "a file with at least one line that is not blank"
            raise OptionError("path", str(self._files[0]), allowed, "which holds no text")
        for number, text, reference in pairs:
            yield Text(f"{self._files[0].name}:{number}", self._files[0].stem, text, reference)
