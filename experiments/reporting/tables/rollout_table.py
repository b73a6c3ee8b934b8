"""Table of rollouts for reinforcement learning: means over spans of steps."""

import math
from collections.abc import Sequence

from experiments.reporting.tables.text_table import Cells
from experiments.simulators.rollouts import Step

COLUMNS = ["steps", "reward", "drafter", "α", "τ", "ms per token", "speedup", "equal"]
SPANS = 5  # rows per drafter


def rollout_table(steps: list[Step]) -> Cells:
    """Means over spans of steps, by drafter; the first row names the columns."""
    rows, spans = [], min(SPANS, len(steps))
    for span in range(spans):
        first, last = (len(steps) * edge // spans for edge in (span, span + 1))
        some = steps[first:last]
        reward, plain_ms = _mean([step.reward for step in some]), _mean([step.plain_ms for step in some])
        for name in some[0].rollouts:
            own = [step.rollouts[name] for step in some]
            ms = _mean([each.ms_per_token for each in own])
            rows.append([
                f"{first + 1} to {last}", f"{reward:.2f}", name, f"{_mean([each.alpha for each in own]):.2f}",
                f"{_mean([each.tau for each in own]):.2f}", f"{ms:.2f}", f"{plain_ms / ms:.2f}",
                f"{_mean([each.equal for each in own]):.0%}",
            ])  # fmt: skip
    return [COLUMNS, *rows]


def _mean(values: Sequence[float | None]) -> float:
    """Mean of the known values; NaN without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
