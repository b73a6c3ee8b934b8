"""Texts of several sources, one source after another, for prompts whose domain changes midway."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from framework.core.option_error import OptionError, options_under
from framework.prompts.prompt_source import PromptSource, Text


class SourceSequence:
    """A number of texts of each source, source after source, drawn without replacement."""

    def __init__(self, *, sources: list[PromptSource], counts: list[int], joined: list[int], seed: int):
        """
        Args:
            sources: sources of the texts.
            counts: number of texts per source, >= 1 each.
            joined: per source, number of its texts that are joined to one by line breaks, >= 1 each; single sentences
                are short.
            seed: seed of the choice and order of a source's texts.

        Raises:
            ValueError: no source, or counts or joined without a whole number >= 1 for each source.
        """
        for name, numbers in (("counts", counts), ("joined", joined)):
            whole = isinstance(numbers, list) and all(type(number) is int and number >= 1 for number in numbers)
            if not whole or not sources or len(numbers) != len(sources):
                raise OptionError(name, numbers, "a whole number >= 1 for each of sources")
        self.sources, self.counts, self.joined, self.seed = sources, counts, joined, seed

    def texts(self) -> Iterator[Text]:
        """Yield the texts.

        Raises:
            ValueError: a source has fewer texts than needed.
        """
        for number, (source, count, size) in enumerate(zip(self.sources, self.counts, self.joined, strict=True)):
            with options_under(f"sources.{number}"):
                found = list(source.texts())
            if len(found) < count * size:
                raise OptionError("counts", self.counts, f"at most {len(found) // size} of source {number}")
            drawn = Random(self.seed).sample(found, count * size)
            for first in range(0, len(drawn), size):
                some = drawn[first : first + size]
                yield replace(some[0], text="\n".join(each.text for each in some), reference=None)
