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
    """Collects the examples of a generation's rows, round by round; only `finish` synchronises with the device."""

    def __init__(self, sequences: Sequences, *, window: int):
        """
        Args:
            sequences: rows of the generation, read by `finish`; the last token of each row is not noted yet.
            window: longest text of an example, in tokens; a longer text loses its beginning.
        """
        self._sequences = sequences
        self._window = window
        self._rounds: list[_Round] = []
        self._begin = [length - 1 for length in self._lengths]

    @property
    def _lengths(self) -> list[int]:
        return [len(text) for text in self._sequences.texts]

    @property
    def num_tokens(self) -> int:
        """Tokens committed since the last `finish`, summed over rows; between rounds."""
        return sum(self._lengths) - sum(self._begin)

    def note(self, outcome: Outcome) -> None:
        """Store the target's logits for the tokens that a round committed."""
        if outcome.target is not None:  # without a pass of the target, nothing is committed
            logits, hidden = outcome.target.logits, outcome.hidden
            rows = torch.arange(len(logits), device=logits.device).unsqueeze(1)
            # Entries after the committed tokens are arbitrary and may be out of range.
            index = rows, outcome.followed.clamp(max=logits.shape[1] - 1)
            hidden = None if hidden is None else hidden[index]
            self._rounds.append(_Round(outcome.num_committed, logits[index], hidden))

    def finish(self) -> list[OnlineExample]:
        """The examples since the last call; the next ones begin after them."""
        examples, lengths = [], self._lengths
        counts = torch.stack([each.num_committed for each in self._rounds]).tolist() if self._rounds else []
        for row, (begin, end) in enumerate(zip(self._begin, lengths, strict=True)):
            if end > begin:
                text = self._sequences.tokens[row, max(0, end - self._window) : end].clone()
                # More tokens were noted if the host took some back.
                kept = slice(max(0, end - begin - len(text) + 1), end - begin)
                its = [(each, count[row]) for each, count in zip(self._rounds, counts, strict=True)]
                p_logits = torch.cat([each.p_logits[row, :count] for each, count in its])[kept]
                hidden = [each.hidden[row, :count] for each, count in its if each.hidden is not None]
                examples.append(OnlineExample(text, p_logits, torch.cat(hidden)[kept] if hidden else None))
        self._rounds, self._begin = [], lengths
        return examples


@dataclass(frozen=True)
class _Round:
    """What the target computed before each token that a round committed; D deepest node of its draft."""

    num_committed: Tensor  # [B] int64: the first entries that count
    p_logits: Tensor  # [B, D + 1, V]
    hidden: Tensor | None  # [B, D + 1, H]
