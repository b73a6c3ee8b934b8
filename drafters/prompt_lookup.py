"""Prompt lookup: copy what followed the last tokens when they occurred before (Saxena, 2023).

B rows, N = gamma nodes.
"""

import itertools

from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.sampling import Sampling
from framework.sequences import Sequences, catch_up
from framework.target import Target
from framework.whole_numbers import check_whole

MATCHES = ("last", "first")


class PromptLookup:
    """Finds the longest suffix of a row that occurred earlier in it, and proposes the tokens that followed there.

    Where the copy reaches the end of the text it goes on with what it copied itself, so that a text that goes round in
    circles is followed for as long as asked (as in LZ77: Ziv and Lempel, 1977). The proposal is empty where no suffix
    occurred before. Looking up and taking in a token cost a fixed number of dictionary accesses, however long the text
    is.
    """

    law = Law.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, max_ngram: int, min_ngram: int, match: str, from_source: bool = True):
        """
        Args:
            target: not needed; every drafter gets it.
            max_ngram: longest suffix looked for, in tokens; the first to be tried.
            min_ngram: shortest one.
            match: which earlier occurrence to copy from: "last" (most recent) or "first" (oldest).
            from_source: whether an encoder's source counts as text before the text, to be copied from as well.

        Raises:
            ValueError: a setting outside its range; the message names the yaml key.
        """
        for key, size in (("min_ngram", min_ngram), ("max_ngram", max_ngram)):
            check_whole(f"drafter.{key}", size, least=1)
        if max_ngram < min_ngram:
            raise ValueError(f"drafter.max_ngram is {max_ngram}; allowed: at least drafter.min_ngram, {min_ngram}")
        if match not in MATCHES:
            raise ValueError(f"drafter.match is {match!r}; allowed: {', '.join(MATCHES)}")
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._keep_first = match == "first"
        self._from_source = from_source
        self._texts: list[_IndexedText] = []

    def num_uniforms(self, gamma: int) -> int:
        """None: its tokens are found, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        sources = sequences.sources if self._from_source else [[]] * sequences.num_rows
        self._texts = [_IndexedText(source, self._sizes, self._keep_first) for source in sources]
        catch_up(self._texts, sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy gamma tokens in the rows where there is something to copy; the others have none that is valid."""
        catch_up(self._texts, sequences)
        return Draft.copied([text.continuation(gamma) for text in self._texts], sequences.tokens.device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class _IndexedText:
    """One row's tokens, and where each n-gram among them was followed by another token."""

    def __init__(self, source: list[int], sizes: range, keep_first: bool):
        """
        Args:
            source: tokens before the text.
            sizes: n-gram sizes in the order of preference.
            keep_first: whether the oldest occurrence of an n-gram is remembered, or the latest.
        """
        self.tokens: list[int] = []
        self._sizes = sizes
        self._keep_first = keep_first
        self._after: dict[tuple[int, ...], int] = {}
        for token in source:
            self.append(token)
        self._num_source = len(source)

    def __len__(self) -> int:
        """Tokens of the text."""
        return len(self.tokens) - self._num_source

    def append(self, token: int) -> None:
        """Take in one token. Only now do the n-grams before it have a continuation: a suffix never finds itself."""
        end = len(self.tokens)
        for size in self._fitting():
            ngram = tuple(self.tokens[-size:])
            if not (self._keep_first and ngram in self._after):
                self._after[ngram] = end
        self.tokens.append(token)

    def continuation(self, length: int) -> list[int]:
        """`length` tokens that followed the longest suffix known from before; none where no suffix is known."""
        for size in self._fitting():
            place = self._after.get(tuple(self.tokens[-size:]))
            if place is not None:
                followed = itertools.cycle(self.tokens[place : place + length])
                return list(itertools.islice(followed, length))
        return []

    def _fitting(self) -> range:
        """The sizes that the text is long enough for."""
        return range(min(self._sizes.start, len(self.tokens)), self._sizes.stop, -1)
