"""Texts that the config itself lists."""

from collections.abc import Iterator

from framework.core.option_error import OptionError
from framework.prompts.prompt_source import Text


class TextList:
    """The given texts, in their order."""

    def __init__(self, *, texts: list[str | list[str]]):
        """
        Args:
            texts: the texts, at least one. A list of strings in place of a text is joined: a yaml cannot hold `${` in
                one string.

        Raises:
            ValueError: there is no text, or an entry is no text or empty.
        """
        self._texts = [_joined(entry) for entry in texts] if isinstance(texts, list) else []
        if not self._texts or not all(self._texts):
            raise OptionError("texts", texts, "a list of texts, none empty")

    def texts(self) -> Iterator[Text]:
        """Yield the texts, with numbered names."""
        for number, text in enumerate(self._texts, start=1):
            yield Text(f"text {number}", "texts", text)


def _joined(entry: object) -> str:
    """The text of an entry; empty if it is none."""
    pieces = entry if isinstance(entry, list) else [entry]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return "".join(texts) if len(texts) == len(pieces) else ""
