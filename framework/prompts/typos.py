"""Code with typos, to be corrected: the standard library's own, whose words were hit at random."""

import re
from collections.abc import Iterator
from random import Random

from framework.prompts.prompt_source import Text, key
from framework.prompts.standard_library import StandardLibrary
from framework.whole_numbers import check_whole

WORD = re.compile(r"[A-Za-z]{4,}")  # long enough to be known again
HEADS = ("# with typos\n", "\n\n# corrected\n")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Typos:
    """How files begin, with letters swapped, lost, doubled or replaced, and then once more the first line as it was.

    Whoever corrects what was read goes on with a text that resembles it, and so does whoever copies it. The reference
    is the rest of the passage as it was.
    """

    def __init__(self, *, split: str, lines: int, rate: float, seed: int, folder: str | None = None):
        """
        Args:
            split: "held_out" or "train"; of files.
            lines: of a passage, blank ones not counted; those are left out.
            rate: in [0, 1]: share of the words of four letters or more that get a typo.
            seed: of the typos.
            folder: where the library lies; None asks the running Python.

        Raises:
            ValueError: an unknown split, or a number out of its range.
            FileNotFoundError: this Python ships without its sources.
        """
        check_whole(key("lines"), lines, least=2)
        if not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise ValueError(f"{key('rate')} is {rate!r}; allowed: a number in [0, 1]")
        self._files = StandardLibrary(split=split, folder=folder)
        self._lines, self._rate, self._seed = lines, rate, seed

    def texts(self) -> Iterator[Text]:
        """Yield a passage of every file that is long enough, sorted by path."""
        for file in self._files.texts():
            passage = [line.rstrip() for line in file.text.splitlines() if line.strip()][: self._lines]
            if len(passage) == self._lines:
                wrong = self._with_typos("\n".join(passage), Random(f"{self._seed} {file.name}"))
                asked = f"{HEADS[0]}{wrong}{HEADS[1]}{passage[0]}\n"
                yield Text(file.name, file.category, asked, reference="\n".join(passage[1:]))

    def _with_typos(self, text: str, random: Random) -> str:
        return WORD.sub(lambda word: _mistyped(word[0], random) if random.random() < self._rate else word[0], text)


def _mistyped(word: str, random: Random) -> str:
    """The word with one typo, which is none of its first letter."""
    place = random.randrange(1, len(word) - 1)
    before, letter, following, after = word[:place], word[place], word[place + 1], word[place + 2 :]
    kind = random.randrange(4)
    if kind == 0 and letter != following:
        return before + following + letter + after
    if kind == 1:
        return before + following + after
    if kind == 2:
        return before + letter + letter + following + after
    return before + random.choice([other for other in LETTERS if other != letter]) + following + after
