"""Texts of several sources, one source after another: prompts whose domain switches midway."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from framework.prompts.prompt_source import PromptSource, Text, key


class InTurn:
    """So many texts of the first source, then of the second, and so on; in each, drawn without repetition."""

    def __init__(self, *, sources: list[PromptSource], counts: list[int], joined: list[int], seed: int):
        """
        Args:
            sources: where the texts come from.
            counts: how many of each.
            joined: how many of a source's own texts become one, a line break between them: single sentences are short.
            seed: which of a source's texts, and in which order.

        Raises:
            ValueError: no source, or not a number >= 1 for each of them.
        """
        for name, numbers in (("counts", counts), ("joined", joined)):
            whole = isinstance(numbers, list) and all(type(number) is int and number >= 1 for number in numbers)
            if not whole or not sources or len(numbers) != len(sources):
                raise ValueError(f"{key(name)} is {numbers}; allowed: a whole number >= 1 for each of {key('sources')}")
        self.sources, self.counts, self.joined, self.seed = sources, counts, joined, seed

    def texts(self) -> Iterator[Text]:
        """Yield them.

        Raises:
            ValueError: a source has fewer texts than are wanted.
        """
        for number, (source, count, size) in enumerate(zip(self.sources, self.counts, self.joined, strict=True)):
            found = list(source.texts())
            if len(found) < count * size:
                raise ValueError(
                    f"{key('counts')} is {self.counts}; allowed: at most {len(found) // size} of source {number}"
                )
            drawn = Random(self.seed).sample(found, count * size)
            for first in range(0, len(drawn), size):
                some = drawn[first : first + size]
                yield replace(some[0], text="\n".join(each.text for each in some), reference=None)
