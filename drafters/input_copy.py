"""Copy the input, for outputs that resemble it (aggressive decoding; Sun et al., 2021).

B rows, N <= gamma nodes.
"""

from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.sampling import Sampling
from framework.sequences import Sequences, catch_up
from framework.target import Target
from framework.whole_numbers import check_whole


class InputCopy:
    """Proposes the input itself from where the output has come to in it, and finds the place again after a rejection.

    The input is what an encoder reads, and there the copy begins with the first token. Without an encoder it is all of
    the text that came before. After a token that is not the input's, the latest tokens of the text are looked for,
    first one, then two, ... up to `max_ngram`: the copy goes on behind the first of these that occurs in the input
    exactly once. Until one does, nothing is drafted. Looking up and taking in a token cost a fixed number of dictionary
    accesses.
    """

    law = Law.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, max_ngram: int):
        """
        Args:
            target: knows how texts begin that answer a source.
            max_ngram: most tokens that are looked for at once; 3 as published.

        Raises:
            ValueError: max_ngram is out of its range; the message names the yaml key.
        """
        check_whole("drafter.max_ngram", max_ngram, least=1)
        self._max_ngram = max_ngram
        self._num_start = len(target.model.text_start)
        self._copies: list[_Copy] = []

    def num_uniforms(self, gamma: int) -> int:
        """None: its tokens are copied, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._copies = [_Copy(source, self._max_ngram, num_start=self._num_start) for source in sequences.sources]
        catch_up(self._copies, sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy at most gamma tokens in the rows whose place in the input is known; others have none that is valid."""
        catch_up(self._copies, sequences)
        return Draft.copied([copy.next_tokens(gamma) for copy in self._copies], sequences.tokens.device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class _Copy:
    """One row's text, and how far it has come in the input."""

    def __init__(self, source: list[int], max_ngram: int, *, num_start: int):
        """
        Args:
            source: what an encoder reads; empty where there is none, and the input grows with the text.
            max_ngram: most tokens that are looked for at once.
            num_start: tokens that the text begins with beside a source, and that are not the input's.
        """
        self._max_ngram = max_ngram
        self._num_start = num_start
        self._length = 0
        self._latest: tuple[int, ...] = ()
        self._given: list[int] = []
        self._behind: dict[tuple[int, ...], int | None] = {}  # an n-gram's one place's end; None where it has several
        for token in source:
            self._take_in(token)
        self._grows = not source
        self._place: int | None = 0 if source else None

    def __len__(self) -> int:
        """Tokens of the text."""
        return self._length

    def append(self, token: int) -> None:
        """Take in the next token of the text."""
        self._length += 1
        if self._length <= self._num_start:
            return
        self._latest = (*self._latest, token)[-self._max_ngram :]
        if self._place is not None and self._given[self._place : self._place + 1] == [token]:
            self._place += 1
        else:
            self._place = self._found()
        if self._grows:  # only now: nothing is its own copy
            self._take_in(token)

    def _take_in(self, token: int) -> None:
        """Let the input be longer by a token."""
        self._given.append(token)
        end = len(self._given)
        for size in range(1, min(self._max_ngram, end) + 1):
            ngram = tuple(self._given[end - size :])
            self._behind[ngram] = None if ngram in self._behind else end

    def _found(self) -> int | None:
        """Behind the shortest of the latest n-grams that the input holds exactly once."""
        for size in range(1, len(self._latest) + 1):
            place = self._behind.get(self._latest[-size:])
            if place is not None:
                return place
        return None

    def next_tokens(self, number: int) -> list[int]:
        """At most so many of the input's tokens from the place on."""
        return [] if self._place is None else self._given[self._place : self._place + number]
