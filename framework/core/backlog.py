"""Host-side bound on the committed tokens that a drafter has not read yet."""

import torch

from framework.core.sequences import power_of_two


class Backlog:
    """Upper bound, over all rows, on the committed tokens not read yet.

    The host maintains it without synchronising with the device. Passes read a power of two of tokens, so that few
    shapes occur. Reading a token again does no harm: it has not changed.

    Attributes:
        most: the bound; None: unknown.
    """

    def __init__(self, limit: int, most: int | None):
        """
        Args:
            limit: most tokens that a row may have.
            most: the initial bound; None: unknown.
        """
        self._limit = limit
        self.most = most

    def add(self, number: int) -> None:
        """Add the number of tokens that a round has committed to a row, the most over all rows."""
        if self.most is not None:
            most = self.most + number
            # A compiled graph is specialised on this number: powers of two keep the graphs few.
            self.most = min(power_of_two(most) if torch.compiler.is_compiling() else most, self._limit)

    def size_of_pass(self, least: int = 1) -> int:
        """Tokens per row of a pass that reads the whole backlog, and at least `least`; the bound must be known."""
        assert self.most is not None, "the bound is unknown"
        return min(power_of_two(max(self.most, least)), self._limit)
