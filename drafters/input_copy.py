"""Copy the input, for outputs that resemble it (aggressive decoding; Sun et al., 2021).

B rows, N <= gamma nodes.
"""

import torch
from torch import Tensor

from framework.draft import Draft, Law, Outcome, Shape
from framework.sampling import Sampling
from framework.sequences import Sequences, catch_up
from framework.target import Target


class InputCopy:
    """Proposes the input itself from where the output has come to in it, and finds the place again after a rejection.

    The input is what an encoder reads, and there the copy begins with the first token; without an encoder it is the
    prompt, and the output's first tokens must be found in it. After a token that is not the input's, the latest tokens
    of the output are looked for, first one, then two, ... up to `max_ngram`: the copy goes on behind the first of these
    that occurs in the input exactly once. Until one does, nothing is drafted. Looking up and taking in a token cost a
    fixed number of dictionary accesses.
    """

    law = Law.ONE_HOT
    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, max_ngram: int):
        """
        Args:
            target: not needed; every drafter gets it.
            max_ngram: most tokens that are looked for at once; 3 as published.

        Raises:
            ValueError: max_ngram is out of its range; the message names the yaml key.
        """
        if not isinstance(max_ngram, int) or isinstance(max_ngram, bool) or max_ngram < 1:
            raise ValueError(f"drafter.max_ngram is {max_ngram!r}; allowed: a whole number >= 1")
        self._max_ngram = max_ngram
        self._copies: list[_Copy] = []

    def num_uniforms(self, gamma: int) -> int:
        """None: its tokens are copied, not drawn."""
        return 0

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        lengths = sequences.prompt_lengths.tolist()
        rows = zip(sequences.sources, sequences.texts, lengths, strict=True)
        self._copies = [
            # Behind an encoder's source the text begins with tokens that are no output.
            _Copy(source or text[:length], self._max_ngram, num_before=length, place=0 if source else None)
            for source, text, length in rows
        ]
        catch_up(self._copies, sequences)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Copy at most gamma tokens in the rows whose place in the input is known; others have none that is valid."""
        catch_up(self._copies, sequences)
        drafts = [copy.next_tokens(gamma) for copy in self._copies]
        deepest, device = max(map(len, drafts)), sequences.tokens.device
        if not deepest:
            return Draft.empty(sequences.num_rows, device)  # the target's pass need not read nodes that are not there
        tokens = torch.tensor([draft + [0] * (deepest - len(draft)) for draft in drafts])
        valid = torch.arange(deepest) < torch.tensor([[len(draft)] for draft in drafts])
        return Draft.chain(tokens, self.law, valid=valid).to(device)

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass


class _Copy:
    """One row's output, and how far it has come in the input."""

    def __init__(self, given: list[int], max_ngram: int, *, num_before: int, place: int | None):
        """
        Args:
            given: the input.
            max_ngram: most tokens that are looked for at once.
            num_before: tokens of the text that are not the output's.
            place: of the input's token that the output is expected to begin with; None does not know.
        """
        self._given = given
        self._max_ngram = max_ngram
        self._num_before = num_before
        self._place = place
        self._length = 0
        self._latest: tuple[int, ...] = ()
        self._behind: dict[tuple[int, ...], int | None] = {}  # an n-gram's one place's end; None where it has several
        for size in range(1, max_ngram + 1):
            for end in range(size, len(given) + 1):
                ngram = tuple(given[end - size : end])
                self._behind[ngram] = None if ngram in self._behind else end

    def __len__(self) -> int:
        """Tokens of the text."""
        return self._length

    def append(self, token: int) -> None:
        """Take in the next token of the text."""
        self._length += 1
        if self._length <= self._num_before:
            return
        self._latest = (*self._latest, token)[-self._max_ngram :]
        if self._place is not None and self._given[self._place : self._place + 1] == [token]:
            self._place += 1
        else:
            self._place = self._found()

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
