"""The PromptSource protocol: texts for prompts, or for the corpus of a drafter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Text:
    """One document with its name and category.

    Attributes:
        name: name of the text, such as its file and line.
        category: category of the text.
        text: the text itself.
        reference: reference answer; None: unknown.
        next_turns: later user turns of a dialogue that begins with this text.
        answers: recorded answers to this text and to `next_turns`; the last may be missing; empty: unknown.
        tests: Python code that raises an error unless the text, completed, is right; None: unknown.

    Raises:
        ValueError: a string holds half of a surrogate pair, which JSON can encode but no tokenizer can read.
    """

    name: str
    category: str
    text: str
    reference: str | None = None
    next_turns: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    tests: str | None = None

    def __post_init__(self) -> None:
        for text in (self.text, self.reference or "", self.tests or "", *self.next_turns, *self.answers):
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise ValueError(
                    f"text {self.name} holds {text[error.start]!r}, half of a surrogate pair; allowed: whole "
                    "characters (prompts.source)"
                ) from None


class PromptSource(Protocol):
    """A collection of texts in a fixed order.

    The same source serves two purposes: its texts become prompts, cut to length, or they are read whole as the corpus
    of a drafter such as the n-gram drafter.
    """

    def texts(self) -> Iterator[Text]:
        """Yield the texts, the same ones in the same order on every call; iterations are independent of each other.

        Every text has a name of its own, and none is blank.

        Raises:
            FileNotFoundError: there is nothing to read; the message names the option.
        """
        ...
