"""What every source of text offers, to be prompted with or to be counted over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Text:
    """One document: where it came from, what kind it is, and what it says.

    Attributes:
        reference: what the model is to answer, where that is known.
        later_turns: of a dialogue that begins with this text: what its user goes on to say.
    """

    name: str
    category: str
    text: str
    reference: str | None = None
    later_turns: tuple[str, ...] = ()


class PromptSource(Protocol):
    """A collection of texts in a fixed order.

    The same source serves twice: its texts are cut to prompts for decoding, or read whole as the corpus
    that an n-gram drafter counts.
    """

    def texts(self) -> Iterator[Text]:
        """Yield the texts, the same ones in the same order on every call.

        Raises:
            FileNotFoundError: nothing is there to read; the message names the yaml key.
        """
        ...


def key(knob: str) -> str:
    """A knob of a source as errors name it: the source cannot know which of its two places in the config it holds."""
    return f"prompts.source.{knob} (of a corpus: drafter.corpus.{knob})"
