"""Pairs of texts from two files that are aligned line by line, such as a corpus of translations."""

from collections.abc import Iterator
from pathlib import Path

from framework.prompts.plain_text import numbered_lines
from framework.prompts.prompt_source import Text, key


class ParallelText:
    """Line n of one UTF-8 file with line n of another as what is to be answered."""

    def __init__(self, *, path: str, reference_path: str):
        """
        Args:
            path: the file of what is asked, a text a line.
            reference_path: the file of the answers. Pairs with a blank line on either side are passed over.

        Raises:
            FileNotFoundError: there is no such file; the message names the yaml key.
        """
        self._files = [Path(each).expanduser() for each in (path, reference_path)]
        for knob, given, file in zip(("path", "reference_path"), (path, reference_path), self._files, strict=True):
            if not file.is_file():
                raise FileNotFoundError(f"{key(knob)} is {given!r}: no such file; allowed: a file with a text a line")

    def texts(self) -> Iterator[Text]:
        """Yield the texts with their references, named by file and line.

        Raises:
            ValueError: a file is not UTF-8, one has more lines than the other, or there is no pair.
        """
        asked, answered = ([line.strip() for _, line in numbered_lines(file)] for file in self._files)
        if len(asked) != len(answered):
            raise ValueError(
                f"{self._files[0]} has {len(asked)} lines and {self._files[1]} {len(answered)}; {key('path')} and "
                f"{key('reference_path')} must be aligned line by line"
            )
        pairs = [(n, *pair) for n, pair in enumerate(zip(asked, answered, strict=True), start=1) if all(pair)]
        if not pairs:
            raise ValueError(f"{self._files[0]} holds no text; {key('path')} needs at least one line that is not blank")
        for number, text, reference in pairs:
            yield Text(f"{self._files[0].name}:{number}", self._files[0].stem, text, reference)
