"""English sentences with their German translations, from a grammar."""

import hashlib
from collections.abc import Iterator
from random import Random

from framework.prompts.english_german.grammar import Grammar
from framework.prompts.prompt_source import Text, key
from framework.whole_numbers import check_whole

SPLITS = ("held_out", "train")
HELD_OUT_SHARE = 50  # one sentence in so many


def is_held_out(english: str) -> bool:
    """Whether a sentence is kept from training: decided by its words alone, so alike for every seed."""
    return int.from_bytes(hashlib.sha256(english.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0


class GrammarPairs:
    """Different sentences of one split, drawn from the grammar."""

    def __init__(self, *, split: str, size: int, seed: int):
        """
        Args:
            split: "held_out" or "train"; no sentence is in both.
            size: how many sentences.
            seed: which ones.

        Raises:
            ValueError: an unknown split, or no sentence asked for.
        """
        if split not in SPLITS:
            raise ValueError(f"{key('split')} is {split!r}; allowed: {', '.join(SPLITS)}")
        check_whole(key("size"), size, least=1)
        self.split = split
        self.size = size
        self.seed = seed

    def texts(self) -> Iterator[Text]:
        """Yield the English sentences, numbered; the category is their pattern, the reference their German."""
        grammar, random = Grammar(), Random(self.seed)
        seen: set[str] = set()
        while len(seen) < self.size:
            pair = grammar.pair(random)
            if pair.english in seen or is_held_out(pair.english) != (self.split == "held_out"):
                continue
            seen.add(pair.english)
            yield Text(f"{self.split}:{len(seen)}", pair.pattern, pair.english, reference=pair.german)
