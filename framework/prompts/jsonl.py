"""Texts from a file of JSON records."""

import json
from collections.abc import Iterator
from pathlib import Path

from framework.prompts.prompt_source import Text, key
from framework.prompts.record import Fields


class Jsonl:
    """One text per line of a JSON Lines file, in the file's order."""

    def __init__(self, *, path: str, field: str, reference_field: str | None, category_field: str | None):
        """
        Args:
            path: the file, UTF-8, one JSON object a line; blank lines are passed over.
            field: the key whose value is the text, or a list of strings, the turns of a dialogue.
            reference_field: the key whose value is what is to be answered; None where that is not known.
            category_field: the key whose value is the category; None puts all texts under the file's name.

        Raises:
            FileNotFoundError: there is no such file.
        """
        self.path = Path(path).expanduser()
        self._fields = Fields(field, reference_field, category_field)
        if not self.path.is_file():
            raise FileNotFoundError(f"{key('path')} is {path!r}: no such file; allowed: a file of JSON lines")

    def texts(self) -> Iterator[Text]:
        """Yield the texts, named by file and line.

        Raises:
            ValueError: a line is not a JSON object, lacks a field or holds no text there, or the file has no records.
        """
        num_texts = 0
        # Bytes: json finds the encoding itself, and reports a wrong one like any other bad line.
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    num_texts += 1
                    yield self._text(line, number)
        if num_texts == 0:
            raise ValueError(f"{self.path} is empty; {key('path')} needs a file with at least one JSON line")

    def _text(self, line: bytes, number: int) -> Text:
        place = f"{self.path}, line {number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{place}: not JSON: {error}; see {key('path')}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{place}: {type(record).__name__}; {key('path')} needs one JSON object a line")
        return self._fields.text_of(record, name=f"{self.path.name}:{number}", category=self.path.stem, place=place)
