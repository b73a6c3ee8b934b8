"""Texts from a JSON Lines file."""

import json
from collections.abc import Iterator
from pathlib import Path

from framework.core.option_error import MissingFileError, OptionError
from framework.prompts.field_mapping import Fields
from framework.prompts.prompt_source import Text


class Jsonl:
    """One text per line of a JSON Lines file, in the file's order."""

    def __init__(
        self,
        *,
        path: str,
        field: str,
        reference_field: str | None,
        category_field: str | None,
        tests: str | None,
    ):
        """
        Args:
            path: the file, in UTF-8, with one JSON object per line; blank lines are skipped.
            field: key of the text, a string; or of the turns of a dialogue, a list of strings.
            reference_field: key of the reference answer; None: unknown.
            category_field: key of the category; None: the file's name for all texts.
            tests: Python code that tests a completed text, with keys in braces, such as "{test}"; None: none.

        Raises:
            FileNotFoundError: no such file.
            ValueError: `tests` has unpaired braces.
        """
        self.path = Path(path).expanduser()
        self._fields = Fields(field, reference_field, category_field, tests)
        if not self.path.is_file():
            raise MissingFileError("path", path, "a file of JSON lines", "no such file")

    def texts(self) -> Iterator[Text]:
        """Yield the texts, named by file and line.

        Raises:
            ValueError: a line is not a JSON object, lacks a field or holds no text there, or the file has no records.
        """
        num_texts = 0
        # Read as bytes: json detects the encoding itself, and reports a wrong one like any other invalid line.
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    num_texts += 1
                    yield self._text(line, number)
        if num_texts == 0:
            raise OptionError("path", str(self.path), "a file with at least one JSON line", "which is empty")

    def _text(self, line: bytes, number: int) -> Text:
        place = f"{self.path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            problem = f"whose line {number} is not JSON: {error}"
            raise OptionError("path", str(self.path), "one JSON object a line", problem) from error
        if not isinstance(record, dict):
            problem = f"whose line {number} is a {type(record).__name__}"
            raise OptionError("path", str(self.path), "one JSON object a line", problem)
        return self._fields.text_of(record, name=f"{self.path.name}:{number}", category=self.path.stem, place=place)
