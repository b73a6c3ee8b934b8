"""One text many times: to sample from a model again and again, such as from nothing but its first token."""

from collections.abc import Iterator

from framework.prompts.prompt_source import Text, key
from framework.whole_numbers import check_whole


class Repeated:
    """The same text, as often as asked; every prompt decodes with a seed of its own."""

    def __init__(self, *, text: str, times: int):
        """
        Args:
            text: what is continued. A special token's name stands for that token.
            times: how often.

        Raises:
            ValueError: no text, or not once.
        """
        if not text:
            raise ValueError(f"{key('text')} is empty; allowed: at least the name of a special token")
        check_whole(key("times"), times, least=1)
        self._text, self._times = text, times

    def texts(self) -> Iterator[Text]:
        """Yield it, numbered."""
        for number in range(1, self._times + 1):
            yield Text(f"sample {number}", "samples", self._text)
