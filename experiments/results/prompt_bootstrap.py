"""Bootstrap over prompts: 95% intervals of acceptance rate, tokens per pass and speedup."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

RESAMPLES = 9999
LEVEL = 0.95
MOST_DRAWN = 10**7  # prompts drawn at once, for the sake of memory
SEED = 0


@dataclass(frozen=True)
class Units:
    """Resampling units: prompts, or batches, whose rows share one time. U units, R repeats."""

    names: list[str]
    seconds: np.ndarray  # [U, R] decoding time
    tokens: np.ndarray  # [U] tokens decoded in that time
    plain_seconds: np.ndarray  # [U, R] decoding time of the baseline
    plain_tokens: np.ndarray  # [U] tokens of the baseline
    accepted: np.ndarray  # [U]
    tested: np.ndarray  # [U]
    rounds: np.ndarray  # [U] target passes, counted per row; NaN in records of earlier versions

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]], batch_size: int) -> Self | None:
        """Units of a record's prompts; None if they lack counts, or if there are fewer than 2 units."""
        batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        if len(batches) < 2 or not all("tested" in row and "decode_seconds" in row for row in rows):
            return None
        return cls(
            names=[f"{row['name']} {row['prompt_tokens']}" for row in rows],
            seconds=np.array([batch[0]["decode_seconds"] for batch in batches], dtype=float),
            # The prefill yields the first token of a row.
            tokens=np.array([sum(row["new_tokens"] - 1 for row in batch) for batch in batches]),
            plain_seconds=np.array([batch[0]["baseline_decode_seconds"] for batch in batches], dtype=float),
            plain_tokens=np.array([sum(row["baseline_new_tokens"] - 1 for row in batch) for batch in batches]),
            accepted=np.array([sum(row["accepted"] for row in batch) for batch in batches]),
            tested=np.array([sum(row["tested"] for row in batch) for batch in batches]),
            rounds=np.array([sum(row.get("rounds", np.nan) for row in batch) for batch in batches]),
        )


Statistic = Callable[[Units, np.ndarray], np.ndarray]
"""A quantity of resampled units: indices [..., n] -> [...]."""


def speedup(units: Units, drawn: np.ndarray) -> np.ndarray:
    """speedup/measured of resampled units."""
    own = units.seconds[drawn].sum(-2) / units.tokens[drawn].sum(-1)[..., None]
    plain = units.plain_seconds[drawn].sum(-2) / units.plain_tokens[drawn].sum(-1)[..., None]
    return np.median(plain / own, axis=-1)


def alpha(units: Units, drawn: np.ndarray) -> np.ndarray:
    """alpha/empirical of resampled units."""
    return units.accepted[drawn].sum(-1) / units.tested[drawn].sum(-1)


def tau(units: Units, drawn: np.ndarray) -> np.ndarray:
    """Tau of resampled units."""
    return units.tokens[drawn].sum(-1) / units.rounds[drawn].sum(-1)


def intervals(rows: Sequence[dict[str, Any]], batch_size: int) -> dict[str, float]:
    """Ends of the intervals as metrics, such as tau/ci_low; undetermined ones are left out."""
    metrics: dict[str, float] = {}
    units = Units.of(rows, batch_size)
    if not units:
        return metrics
    for name, statistic in (("alpha", alpha), ("tau", tau), ("speedup", speedup)):
        low, high = interval(len(units.tokens), statistic=partial(statistic, units))
        if low is not None and high is not None:
            metrics |= {f"{name}/ci_low": low, f"{name}/ci_high": high}
    return metrics


def difference_interval(before: Units, after: Units, statistic: Statistic) -> tuple[float | None, float | None]:
    """Interval of a statistic's difference; paired where both have the same prompts."""
    sizes = len(before.tokens), len(after.tokens)
    if before.names == after.names and sizes[0] == sizes[1]:
        return interval(sizes[0], statistic=lambda drawn: statistic(after, drawn) - statistic(before, drawn))
    return interval(*sizes, statistic=lambda first, second: statistic(after, second) - statistic(before, first))


def interval(*sizes: int, statistic: Callable[..., np.ndarray]) -> tuple[float | None, float | None]:
    """Percentile bootstrap interval; None, None if the statistic of some resample is not finite.

    Args:
        sizes: number of units of every sample; samples are drawn independently.
        statistic: resampled indices of every sample, each [..., n], -> [...].
    """
    from scipy.stats import DegenerateDataWarning, bootstrap  # a slow import

    def resampled(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        return statistic(*(np.moveaxis(each, axis, -1).astype(int) for each in drawn))

    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)  # the interval is then not finite
        found = bootstrap(
            [np.arange(size) for size in sizes],
            resampled,
            n_resamples=RESAMPLES,
            batch=max(1, min(RESAMPLES, MOST_DRAWN // max(sizes))),
            confidence_level=LEVEL,
            method="percentile",
            vectorized=True,
            rng=np.random.default_rng(SEED),
        )
    low, high = float(found.confidence_interval.low), float(found.confidence_interval.high)
    return (low, high) if np.isfinite([low, high]).all() else (None, None)  # some resample holds no tested token
