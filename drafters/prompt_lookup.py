"""Prompt lookup: copy the tokens after an earlier occurrence of the last tokens (Saxena, 2023).

B rows, N = gamma nodes.
"""

import itertools

from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.core.sequences import FollowsText, Sequences, catch_up, put
from framework.core.validation import check_whole
from framework.models.target import Target

MATCHES = ("last", "first")
TOGETHER = 5  # from this multiple of max_ngram on, tokens are indexed together: 64 take half as long as one by one


class PromptLookup:
    """Finds the longest suffix of a row with an earlier occurrence in it, and copies the tokens after that occurrence.

    A copy that reaches the end of the text continues with its own tokens, so that a repeating text is followed to any
    depth (as in LZ77; Ziv and Lempel, 1977). The draft is empty if no suffix of an allowed length occurred before. Each
    token costs a fixed number of dictionary accesses, whatever the length of the text.
    """

    scheme = SamplingScheme.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, max_ngram: int, min_ngram: int, match: str, from_source: bool = True):
        """
        Args:
            target: unused; every drafter receives it.
            max_ngram: longest suffix that is looked up, in tokens; tried first.
            min_ngram: shortest suffix that is looked up, in tokens.
            match: the earlier occurrence to copy from: "last" (most recent) or "first" (oldest).
            from_source: whether an encoder's source is copied from as well, as text before the text.

        Raises:
            ValueError: an option out of range; the message names the yaml key.
        """
        for key, size in (("min_ngram", min_ngram), ("max_ngram", max_ngram)):
            check_whole(key, size, least=1)
        if max_ngram < min_ngram:
            raise OptionError("max_ngram", max_ngram, f"at least min_ngram, {min_ngram}")
        if match not in MATCHES:
            raise OptionError("match", match, f"{', '.join(MATCHES)}")
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._keep_first = match == "first"
        self._from_source = from_source
        self._texts: list[_IndexedText] = []

    def num_uniforms(self, gamma: int) -> int:
        """Zero: tokens are copied, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._texts = self._indexed(sequences)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._texts, rows, self._indexed(sequences))

    def _indexed(self, sequences: Sequences) -> list["_IndexedText"]:
        sources = sequences.sources if self._from_source else [[]] * sequences.num_rows
        texts = [_IndexedText(source, self._sizes, self._keep_first) for source in sources]
        catch_up(texts, sequences)
        return texts

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy gamma tokens in rows with a match; other rows have no valid node."""
        return Draft.from_lists(self.look_up(sequences, gamma), sequences.tokens.device)

    def look_up(self, sequences: Sequences, gamma: int) -> list[list[int]]:
        catch_up(self._texts, sequences)
        return [text.continuation(gamma) for text in self._texts]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class _IndexedText(FollowsText):
    """One row's tokens, and the position after every n-gram with a continuation."""

    def __init__(self, source: list[int], sizes: range, keep_first: bool):
        """
        Args:
            source: tokens before the text.
            sizes: n-gram sizes in order of preference, longest first.
            keep_first: whether the oldest occurrence of an n-gram is indexed; otherwise the latest.
        """
        self.tokens: list[int] = []
        self._sizes = sizes
        self._keep_first = keep_first
        self._after: dict[tuple[int, ...], int] = {}
        self.extend(source)
        self._num_source = len(source)

    def __len__(self) -> int:
        """Number of tokens of the text, without the source."""
        return len(self.tokens) - self._num_source

    def extend(self, tokens: list[int]) -> None:
        """Add tokens and index the n-grams before each of them, so that a suffix never matches itself."""
        if len(tokens) < TOGETHER * self._sizes.start:
            super().extend(tokens)
            return
        begin = len(self.tokens)
        self.tokens += tokens
        for size in self._fitting():
            places = range(max(begin, size), len(self.tokens))
            columns = [self.tokens[places.start - back : places.stop - back] for back in range(size, 0, -1)]
            found = zip(zip(*columns, strict=True), places, strict=True)
            if self._keep_first:
                for ngram, place in found:
                    self._after.setdefault(ngram, place)
            else:
                self._after.update(found)

    def append(self, token: int) -> None:
        end, after = len(self.tokens), self._after
        longest = tuple(self.tokens[-self._sizes.start :])
        for size in range(len(longest), self._sizes.stop, -1):
            ngram = longest[-size:]
            if not (self._keep_first and ngram in after):
                after[ngram] = end
        self.tokens.append(token)

    def continuation(self, length: int) -> list[int]:
        """`length` tokens that followed an earlier occurrence of the longest suffix; empty: no suffix has one."""
        for size in self._fitting():
            place = self._after.get(tuple(self.tokens[-size:]))
            if place is not None:
                followed = itertools.cycle(self.tokens[place : place + length])
                return list(itertools.islice(followed, length))
        return []

    def _fitting(self) -> range:
        """The sizes up to the length of source and text."""
        return range(min(self._sizes.start, len(self.tokens)), self._sizes.stop, -1)
