"""What verification computed anyway, kept for a drafter to learn from.

T tokens of a text, n of them with the target's law, V vocabulary, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from framework.draft import Outcome
from framework.drafter import Drafter
from framework.sequences import Sequences


@dataclass(frozen=True)
class Lesson:
    """A text, and the target's logits that its last tokens were verified with."""

    tokens: Tensor  # [T] int64, T > n
    p_logits: Tensor  # [n, V] before temperature: of token T - n, given those before it, ... of token T - 1
    hidden: Tensor | None  # [n, H] what the target's output layer made them from


class Teachable(Drafter, Protocol):
    """Optional: a drafter whose laws can be fitted to the target's while it drafts (`drafters.online`)."""

    @property
    def module(self) -> nn.Module:
        """What is fitted: all its parameters."""
        ...

    @property
    def longest_text(self) -> int:
        """Most tokens of a text that it can learn from."""
        ...

    def logits_of(self, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
        """What the target and this drafter say at the same places: logits [N, V] each, its own with a gradient."""
        ...

    def refresh(self, sequences: Sequences) -> None:
        """The module has changed: draft as if begun with these sequences."""
        ...


class LessonsUnderway:
    """Gathers the lessons of a generation's rows, round by round."""

    def __init__(self, sequences: Sequences, *, window: int):
        """
        Args:
            sequences: will be read once lessons are asked for; a row's last token has not been noted yet.
            window: longest text of a lesson; it loses its beginning.
        """
        self._sequences = sequences
        self._window = window
        self._noted: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in range(sequences.num_rows)]
        self._begin = (sequences.lengths - 1).tolist()
        self.num_tokens = 0

    def note(self, outcome: Outcome) -> None:
        """Keep the target's rows that the tokens committed in a round were drawn from."""
        rows, target = outcome.followed, outcome.target
        for row, count in enumerate(outcome.num_committed.tolist()):
            if count:
                its = rows[row, :count]
                hidden = None if target.hidden is None else target.hidden[row, its]
                self._noted[row].append((target.logits[row, its], hidden))
                self.num_tokens += count

    def finish(self) -> list[Lesson]:
        """The lessons so far; later ones begin behind them."""
        lessons = []
        lengths = self._sequences.lengths.tolist()
        for row, noted in enumerate(self._noted):
            count = lengths[row] - self._begin[row]  # less than was noted where the host took tokens back
            if count:
                text = self._sequences.tokens[row, max(0, lengths[row] - self._window) : lengths[row]].clone()
                kept = slice(max(0, count - len(text) + 1), count)
                p_logits = torch.cat([p_logits for p_logits, _ in noted])[kept]
                hidden = [hidden for _, hidden in noted if hidden is not None]
                lessons.append(Lesson(text, p_logits, torch.cat(hidden)[kept] if hidden else None))
        self._noted, self._begin, self.num_tokens = [[] for _ in lengths], lengths, 0
        return lessons
