"""Training examples for online drafters, from the target's logits that verification computes anyway.

T tokens of a text, n of them with the target's logits, V vocabulary, H hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from framework.core.draft import Outcome
from framework.core.drafter import Drafter
from framework.core.sequences import Sequences


@dataclass(frozen=True)
class OnlineExample:
    """A text, and the target's logits that verified its last n tokens."""

    tokens: Tensor  # [T] int64, T > n
    p_logits: Tensor  # [n, V] before temperature; row i scores token T - n + i
    hidden: Tensor | None  # [n, H] inputs of the target's output layer that gave p_logits


class Distillable(Drafter, Protocol):
    """Optional: a drafter whose distributions can be fitted to the target's while it drafts (`drafters.online`)."""

    @property
    def module(self) -> nn.Module:
        """The trained module; all its parameters are fitted."""
        ...

    @property
    def longest_text(self) -> int:
        """Length in tokens of the longest text that it can be trained on."""
        ...

    def logits_of(self, examples: Sequence[OnlineExample]) -> tuple[Tensor, Tensor]:
        """Logits [N, V] of the target and of this drafter at the same positions; the drafter's carry a gradient."""
        ...

    def refresh(self, sequences: Sequences) -> None:
        """Called after the module has changed; from then on the drafter drafts as if begun with these sequences."""
        ...


def is_teachable(drafter: Drafter) -> TypeGuard[Distillable]:
    """Whether the drafter is Distillable."""
    return hasattr(drafter, "logits_of")


class ExamplesUnderway:
    """Collects the examples of a generation's rows, round by round.

    Attributes:
        num_tokens: tokens noted since the last `finish`, summed over rows.
    """

    def __init__(self, sequences: Sequences, *, window: int):
        """
        Args:
            sequences: rows of the generation, read by `finish`; the last token of each row is not noted yet.
            window: longest text of an example, in tokens; a longer text loses its beginning.
        """
        self._sequences = sequences
        self._window = window
        self._noted: list[list[tuple[Tensor, Tensor | None]]] = [[] for _ in range(sequences.num_rows)]
        self._begin = (sequences.lengths - 1).tolist()
        self.num_tokens = 0

    def note(self, outcome: Outcome) -> None:
        """Store the target's logits for the tokens that a round committed."""
        rows, target = outcome.followed, outcome.target
        for row, count in enumerate(outcome.num_committed.tolist()):
            if count:
                assert target is not None, "tokens are committed after a pass of the target"
                its = rows[row, :count]
                hidden = None if outcome.hidden is None else outcome.hidden[row, its]
                self._noted[row].append((target.logits[row, its], hidden))
                self.num_tokens += count

    def finish(self) -> list[OnlineExample]:
        """The examples since the last call; the next ones begin after them."""
        examples = []
        lengths = self._sequences.lengths.tolist()
        for row, noted in enumerate(self._noted):
            count = lengths[row] - self._begin[row]  # fewer than noted if the host took tokens back
            if count:
                text = self._sequences.tokens[row, max(0, lengths[row] - self._window) : lengths[row]].clone()
                kept = slice(max(0, count - len(text) + 1), count)
                p_logits = torch.cat([p_logits for p_logits, _ in noted])[kept]
                hidden = [hidden for _, hidden in noted if hidden is not None]
                examples.append(OnlineExample(text, p_logits, torch.cat(hidden)[kept] if hidden else None))
        self._noted, self._begin, self.num_tokens = [[] for _ in lengths], lengths, 0
        return examples
