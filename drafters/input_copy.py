"""Copies of the input, for outputs that resemble it (aggressive decoding; Sun et al., 2021).

B rows, N <= gamma nodes.
"""

from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.core.sequences import FollowsText, Sequences, catch_up, put
from framework.core.validation import check_whole
from framework.models.target import Target


class InputCopy:
    """Copies the input from the output's current position in it, and realigns after a rejection.

    With an encoder, the input is the source, and the copy starts at its first token. Without one, the input is all
    preceding text. After a token that differs from the input, the last 1, 2, ... `max_ngram` tokens of the text are
    looked up in that order. The copy resumes after the first of these n-grams that occurs in the input exactly once;
    until then nothing is drafted. Each token costs a fixed number of dictionary accesses.
    """

    scheme = SamplingScheme.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, max_ngram: int):
        """
        Args:
            target: provides the start tokens of an encoder-decoder's texts.
            max_ngram: longest n-gram that is looked up, in tokens; 3 in the paper.

        Raises:
            ValueError: max_ngram is out of range; the message names the yaml key.
        """
        check_whole("max_ngram", max_ngram, least=1)
        self._max_ngram = max_ngram
        self._num_start = len(target.model.text_start)
        self._copies: list[_Copy] = []

    def num_uniforms(self, gamma: int) -> int:
        """Zero: tokens are copied, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._copies = self._begun(sequences)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._copies, rows, self._begun(sequences))

    def _begun(self, sequences: Sequences) -> list["_Copy"]:
        copies = [_Copy(source, self._max_ngram, num_start=self._num_start) for source in sequences.sources]
        catch_up(copies, sequences)
        return copies

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy at most gamma tokens; rows without a known position in the input have no valid node."""
        return Draft.from_lists(self.look_up(sequences, gamma), sequences.tokens.device)

    def look_up(self, sequences: Sequences, gamma: int) -> list[list[int]]:
        catch_up(self._copies, sequences)
        return [copy.next_tokens(gamma) for copy in self._copies]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class _Copy(FollowsText):
    """One row's text and its current position in the input."""

    def __init__(self, source: list[int], max_ngram: int, *, num_start: int):
        """
        Args:
            source: encoder input; empty without an encoder, and then the input grows with the text.
            max_ngram: longest n-gram that is looked up, in tokens.
            num_start: start tokens of an encoder-decoder's text, which are not part of the input.
        """
        self._max_ngram = max_ngram
        self._num_start = num_start
        self._length = 0
        self._latest: tuple[int, ...] = ()
        self._given: list[int] = []
        self._ends: dict[tuple[int, ...], int | None] = {}  # end of an n-gram's only occurrence; None: it has several
        for token in source:
            self._take_in(token)
        self._grows = not source
        self._place: int | None = 0 if source else None

    def __len__(self) -> int:
        """Number of tokens of the text, without the source."""
        return self._length

    def append(self, token: int) -> None:
        self._length += 1
        if self._length <= self._num_start:
            return
        self._latest = (*self._latest, token)[-self._max_ngram :]
        if self._place is not None and self._given[self._place : self._place + 1] == [token]:
            self._place += 1
        else:
            self._place = self._found()
        if self._grows:  # after the lookup, so that no n-gram matches itself
            self._take_in(token)

    def _take_in(self, token: int) -> None:
        """Extend the input by one token."""
        self._given.append(token)
        end = len(self._given)
        for size in range(1, min(self._max_ngram, end) + 1):
            ngram = tuple(self._given[end - size :])
            self._ends[ngram] = None if ngram in self._ends else end

    def _found(self) -> int | None:
        """End of the shortest trailing n-gram that occurs in the input exactly once; None: there is none."""
        for size in range(1, len(self._latest) + 1):
            place = self._ends.get(self._latest[-size:])
            if place is not None:
                return place
        return None

    def next_tokens(self, number: int) -> list[int]:
        """At most `number` tokens of the input from the current position on."""
        return [] if self._place is None else self._given[self._place : self._place + number]
