"""Suffix automaton of several documents, extended token by token."""

from bisect import bisect_right

Match = tuple[int, int]
"""A state and the length of the matched substring; (0, 0) is the empty substring."""


class SuffixAutomaton:
    """Minimal automaton of all substrings of its documents, built online (Blumer et al., 1985).

    A state represents substrings that end at the same positions; its link leads to the state of their longest suffix
    that ends at more positions. Appending a token and following a text by one token take amortised constant time, and
    the number of states is linear in the number of tokens.

    Attributes:
        tokens: tokens of all documents, concatenated.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]  # per state, the root first
        self._link = [-1]
        self._length = [0]  # of the state's longest substring
        self._first_end = [-1]  # position of the last token of its first occurrence
        self._ends: list[int] = []  # of the closed documents
        self._last = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Append the next token of the open document."""
        place = len(self.tokens)
        self.tokens.append(token)
        before, known = self._last, self._next[self._last].get(token)
        if known is not None:  # an earlier document contains the open one so far
            self._last = self._as_long_as(before, token, known)
            return
        self._last = self._add({}, self._length[before] + 1, place)
        while before != -1 and token not in self._next[before]:
            self._next[before][token] = self._last
            before = self._link[before]
        self._link[self._last] = 0 if before == -1 else self._as_long_as(before, token, self._next[before][token])

    def close_document(self) -> None:
        """Close the open document; the next token begins a new one."""
        self._ends.append(len(self.tokens))
        self._last = 0

    def _add(self, after: dict[int, int], length: int, first_end: int) -> int:
        self._next.append(after)
        self._link.append(0)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._next) - 1

    def _as_long_as(self, before: int, token: int, state: int) -> int:
        """State after `before` and `token` with a longest substring one token longer; splits `state` if necessary."""
        length = self._length[before] + 1
        if self._length[state] == length:
            return state
        shorter = self._add(dict(self._next[state]), length, self._first_end[state])
        self._link[shorter], self._link[state] = self._link[state], shorter
        while before != -1 and self._next[before].get(token) == state:
            self._next[before][token] = shorter
            before = self._link[before]
        return shorter

    def follow(self, match: Match, token: int) -> Match:
        """Extend a match by the next token of a text: the text's longest suffix that is a substring."""
        state, length = match
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        after = self._next[state].get(token)
        return (0, 0) if after is None else (after, length + 1)

    def earlier(self) -> Match:
        """The longest suffix of the open document that also ends at an earlier position."""
        state = self._last
        if self._first_end[state] == len(self.tokens) - 1:  # the whole open document occurs only here
            state = max(0, self._link[state])
        return state, self._length[state]

    def continued(self, match: Match) -> tuple[int, int]:
        """First continuation of the longest suffix of a match that has one.

        Returns:
            position of the token that followed, and length of the suffix; length 0: no suffix has a continuation.
        """
        state, length = match
        while state and not self._next[state]:  # it occurs only at the end of documents
            state = self._link[state]
            length = self._length[state]
        if not state:
            return 0, 0
        # A dict keeps its order: the first entry is the first continuation, and ends where it first occurred.
        return self._first_end[next(iter(self._next[state].values()))], length

    def end_of(self, place: int) -> int:
        """End of the document that contains the token at `place`."""
        later = bisect_right(self._ends, place)
        return self._ends[later] if later < len(self._ends) else len(self.tokens)
