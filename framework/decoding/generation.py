"""The result of a decoding loop."""

from dataclasses import dataclass

from framework.metrics.tally import Tally


@dataclass(frozen=True)
class Generation:
    """New tokens of every prompt.

    Attributes:
        tokens: per prompt, token ids committed after it.
        finish_reasons: per prompt: eos, stop_string, length or context.
        tally: counts of the rounds; None for plain decoding.
        num_steps: steps of plain decoding; None: those of the longest row.
    """

    tokens: list[list[int]]
    finish_reasons: list[str]
    tally: Tally | None = None
    num_steps: int | None = None

    @property
    def num_passes(self) -> int:
        """Target passes after prefill, each counted once for all rows."""
        if self.tally is not None:
            return int(self.tally.num_passes)
        return max(map(len, self.tokens)) - 1 if self.num_steps is None else self.num_steps
