"""The result of a decoding loop."""

from dataclasses import dataclass

from framework.metrics.tally import Tally


@dataclass(frozen=True)
class Generation:
    """New tokens of every row.

    Attributes:
        tokens: per row, token ids committed after the prompt.
        finish_reasons: per row: eos, stop_string, length or context.
        tally: counts of the rounds; None for plain decoding.
    """

    tokens: list[list[int]]
    finish_reasons: list[str]
    tally: Tally | None = None
