"""Prompts for correction: code of the standard library, or sentences of a grammar, with random typos in its words."""

import re
from collections.abc import Iterator
from random import Random

from experiments.corpora.grammar_pairs import GrammarPairs
from experiments.corpora.standard_library import StandardLibrary
from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

WORD = re.compile(r"[A-Za-z]{4,}")  # long enough to be recognised with a typo
HEADS = ("# with typos\n", "\n\n# corrected\n")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Typos:
    """Prompts of a file's beginning with letters swapped, lost, doubled or replaced, then its correct first line.

    The continuation resembles the prompt, whether a model corrects it or copies it. The reference is the rest of the
    correct passage.
    """

    def __init__(self, *, split: str, lines: int, rate: float, seed: int, folder: str | None = None):
        """
        Args:
            split: split of the files, "held_out" or "train".
            lines: lines per passage; blank lines are removed and not counted.
            rate: share in [0, 1] of the words with at least four letters that get a typo.
            seed: seed of the typos.
            folder: folder of the library; None: that of the running Python.

        Raises:
            ValueError: an unknown split, or a number out of its range.
            FileNotFoundError: this Python ships without its sources.
        """
        check_whole("lines", lines, least=2)
        _check_rate(rate)
        self._files = StandardLibrary(split=split, folder=folder)
        self._lines, self._rate, self._seed = lines, rate, seed

    def texts(self) -> Iterator[Text]:
        """Yield one prompt per file with enough lines, sorted by path; the category is the file's."""
        for file in self._files.texts():
            passage = [line.rstrip() for line in file.text.splitlines() if line.strip()][: self._lines]
            if len(passage) == self._lines:
                wrong = _with_typos("\n".join(passage), self._rate, Random(f"{self._seed} {file.name}"))
                asked = f"{HEADS[0]}{wrong}{HEADS[1]}{passage[0]}\n"
                yield Text(file.name, file.category, asked, reference="\n".join(passage[1:]))


class MisspeltSentences:
    """Pairs for a correcting encoder-decoder: English sentences of the grammar with typos, and the sentences."""

    def __init__(self, *, split: str, size: int, sentences: int, rate: float, seed: int):
        """
        Args:
            split: "held_out" or "train", which have no sentence in common.
            size: number of texts.
            sentences: sentences per text.
            rate: share in [0, 1] of the words with at least four letters that get a typo.
            seed: seed of sentences and typos.

        Raises:
            ValueError: an unknown split, or a number out of its range.
        """
        check_whole("size", size, least=1)
        check_whole("sentences", sentences, least=1)
        _check_rate(rate)
        self._grammar = GrammarPairs(split=split, size=size * sentences, seed=seed)
        self._split, self._sentences, self._rate, self._seed = split, sentences, rate, seed

    def texts(self) -> Iterator[Text]:
        """Yield numbered texts with typos; the reference is the text without them."""
        random = Random(f"{self._seed} {self._split}")
        groups = zip(*[self._grammar.texts()] * self._sentences, strict=True)  # one iterator, read in turn
        for number, some in enumerate(groups, start=1):
            correct = " ".join(sentence.text for sentence in some)
            wrong = _with_typos(correct, self._rate, random)
            yield Text(f"{self._split}:{number}", some[0].category, wrong, reference=correct)


def _check_rate(rate: float) -> None:
    if not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise OptionError("rate", rate, "a number in [0, 1]")


def _with_typos(text: str, rate: float, random: Random) -> str:
    return WORD.sub(lambda word: _mistyped(word[0], random) if random.random() < rate else word[0], text)


def _mistyped(word: str, random: Random) -> str:
    """Put one typo into a word, not at its first letter."""
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
