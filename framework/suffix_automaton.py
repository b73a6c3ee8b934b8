"""Every substring of some documents, in as many states as they have tokens, grown token by token."""

from bisect import bisect_right

Match = tuple[int, int]
"""A state, and the length of the substring meant; (0, 0) is the empty one."""


class SuffixAutomaton:
    """The smallest automaton that reads every substring of its documents, built online (Blumer et al., 1985).

    A state stands for substrings that end at the same places; its link for the longest of their suffixes that ends at
    more places. Taking in a token, and following a text that is read, cost amortised constant time.

    Attributes:
        tokens: of all documents, one after another.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]  # per state, the root first
        self._link = [-1]
        self._length = [0]  # of the longest substring
        self._first_end = [-1]  # place of the last token of its first occurrence
        self._ends: list[int] = []  # of the documents that are closed
        self._last = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Take in the next token of the open document."""
        place = len(self.tokens)
        self.tokens.append(token)
        before, known = self._last, self._next[self._last].get(token)
        if known is not None:  # an earlier document has all that this one holds so far
            self._last = self._as_long_as(before, token, known)
            return
        self._last = self._add({}, self._length[before] + 1, place)
        while before != -1 and token not in self._next[before]:
            self._next[before][token] = self._last
            before = self._link[before]
        self._link[self._last] = 0 if before == -1 else self._as_long_as(before, token, self._next[before][token])

    def close_document(self) -> None:
        """Let what follows be a document of its own."""
        self._ends.append(len(self.tokens))
        self._last = 0

    def _add(self, after: dict[int, int], length: int, first_end: int) -> int:
        self._next.append(after)
        self._link.append(0)
        self._length.append(length)
        self._first_end.append(first_end)
        return len(self._next) - 1

    def _as_long_as(self, before: int, token: int, state: int) -> int:
        """The state behind `before` with a longest substring one longer than its; split off `state`, if need be."""
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
        """The longest suffix of what was read that is a substring, once this token is read, too."""
        state, length = match
        while state and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        after = self._next[state].get(token)
        return (0, 0) if after is None else (after, length + 1)

    def earlier(self) -> Match:
        """The longest suffix of the open document that has ended at an earlier place, too."""
        state = self._last
        if self._first_end[state] == len(self.tokens) - 1:  # the document as it stands is new
            state = max(0, self._link[state])
        return state, self._length[state]

    def continued(self, match: Match) -> tuple[int, int]:
        """Where the longest suffix of a match that something follows was first followed, and how long it is.

        Returns:
            the place of the token that followed, and the suffix's length; a length of 0 says that there is none.
        """
        state, length = match
        while state and not self._next[state]:  # it ends documents, and is found nowhere else
            state = self._link[state]
            length = self._length[state]
        if not state:
            return 0, 0
        # What followed first stands first; where that was first read is where it followed.
        return self._first_end[next(iter(self._next[state].values()))], length

    def end_of(self, place: int) -> int:
        """Where the document ends that a token belongs to."""
        later = bisect_right(self._ends, place)
        return self._ends[later] if later < len(self._ends) else len(self.tokens)
