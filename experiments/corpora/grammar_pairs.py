"""English sentences with German translations, drawn from a grammar."""

import hashlib
from collections.abc import Iterator
from random import Random

from experiments.corpora.english_german.grammar import Grammar
from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

SPLITS = ("held_out", "train")
HELD_OUT_SHARE = 50  # one sentence in this many


def is_held_out(english: str) -> bool:
    """Whether a sentence is held out.

    A hash of its text decides, so the split does not depend on the seed.
    """
    return int.from_bytes(hashlib.sha256(english.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


class GrammarPairs:
    """Distinct sentences of one split, drawn from the grammar."""

    def __init__(self, *, split: str, size: int, seed: int):
        """
        Args:
            split: "held_out" or "train", which are disjoint.
            size: number of sentences.
            seed: seed of the draws.

        Raises:
            ValueError: an unknown split, or size < 1.
        """
        if split not in SPLITS:
            raise OptionError("split", split, f"{', '.join(SPLITS)}")
        check_whole("size", size, least=1)
        self.split = split
        self.size = size
        self.seed = seed

    def texts(self) -> Iterator[Text]:
        """Yield numbered English sentences; the category is the pattern, the reference the German translation."""
        grammar, random = Grammar(), Random(self.seed)
        seen: set[str] = set()
        while len(seen) < self.size:
            pair = grammar.pair(random)
            if pair.english in seen or is_held_out(pair.english) != (self.split == "held_out"):
                continue
            seen.add(pair.english)
            yield Text(f"{self.split}:{len(seen)}", pair.pattern, pair.english, reference=pair.german)
