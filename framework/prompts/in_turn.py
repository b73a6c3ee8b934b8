"""Texts of several sources, one source after another: prompts whose domain switches midway."""

from collections.abc import Iterator
from random import Random

from framework.prompts.prompt_source import PromptSource, Text, key


class InTurn:
    """So many texts of the first source, then of the second, and so on; in each, drawn without repetition."""

    def __init__(self, *, sources: list[PromptSource], counts: list[int], seed: int):
        """
        Args:
            sources: where the texts come from; the category of a text is how it calls its own.
            counts: how many of each.
            seed: which of a source's texts, and in which order.

        Raises:
            ValueError: no source, another number of counts, or a count below 1.
        """
        if not sources or len(counts) != len(sources) or any(count < 1 for count in counts):
            raise ValueError(f"{key('counts')} is {counts}; allowed: a whole number >= 1 for each of {key('sources')}")
        self.sources, self.counts, self.seed = sources, counts, seed

    def texts(self) -> Iterator[Text]:
        """Yield them.

        Raises:
            ValueError: a source has fewer texts than are wanted.
        """
        for number, (source, count) in enumerate(zip(self.sources, self.counts, strict=True)):
            found = list(source.texts())
            if len(found) < count:
                raise ValueError(
                    f"{key('counts')} is {self.counts}; allowed: at most {len(found)} of source {number}, which has no more"
                )
            yield from Random(self.seed).sample(found, count)
