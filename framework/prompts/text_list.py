"""Texts that the config itself lists."""

from collections.abc import Iterator

from framework.core.option_error import OptionError
from framework.prompts.prompt_source import Text


class TextList:
    """The given texts, in their order."""

    def __init__(self, *, texts: list[str]):
        """
        Args:
            texts: the texts, at least one.

        Raises:
            ValueError: there is no text, or an entry is no text or empty.
        """
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise OptionError("texts", texts, "a list of texts, none empty")
        self._texts = texts

    def texts(self) -> Iterator[Text]:
        """Yield the texts, with numbered names."""
        for number, text in enumerate(self._texts, start=1):
            yield Text(f"text {number}", "texts", text)
