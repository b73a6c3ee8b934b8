"""One text many times, for many samples of one prompt, such as of a start token alone."""

from collections.abc import Iterator

from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text


class Repeated:
    """The same text `times` times; every prompt is decoded with its own seed."""

    def __init__(self, *, text: str, times: int):
        """
        Args:
            text: text to continue; the name of a special token stands for that token.
            times: number of repetitions, >= 1.

        Raises:
            ValueError: an empty text, or times < 1.
        """
        if not text:
            raise OptionError("text", text, "at least the name of a special token")
        check_whole("times", times, least=1)
        self._text, self._times = text, times

    def texts(self) -> Iterator[Text]:
        """Yield the text, with numbered names."""
        for number in range(1, self._times + 1):
            yield Text(f"sample {number}", "samples", self._text)
