"""Intervals over prompts, against cases whose bootstrap distribution is known."""

import numpy as np
import pytest

from experiments.results.prompt_bootstrap import intervals
from tests.support.page_records import prompts

ENDS = ("ci_low", "ci_high")


def ends_of(found: dict[str, float], name: str) -> list[float]:
    return [found[f"{name}/{end}"] for end in ENDS]


def test_equal_prompts_have_intervals_without_width() -> None:
    """10 tokens in 4 rounds, 30 of 40 nodes accepted, and two thirds of the baseline's time."""
    rows = [row | {"rounds": 4} for row in prompts([30] * 5)]
    found = intervals(rows, batch_size=1)
    for name, value in (("alpha", 0.75), ("tau", 2.5), ("speedup", 1.5)):
        assert ends_of(found, name) == pytest.approx([value, value])


def test_two_prompts_give_the_values_of_each_alone() -> None:
    """Drawing two of two prompts takes the same one twice half of the time, so both ends are those of one prompt."""
    first, second = (row | {"rounds": rounds} for row, rounds in zip(prompts([10, 30]), (10, 4), strict=True))
    second["decode_seconds"] = [0.5, 0.55]
    found = intervals([first, second], batch_size=1)
    assert ends_of(found, "alpha") == pytest.approx([0.25, 0.75])
    assert ends_of(found, "tau") == pytest.approx([1.0, 2.5])
    assert ends_of(found, "speedup") == pytest.approx([1.5, 3.0])


def test_many_prompts_have_the_normal_interval_of_their_mean() -> None:
    accepted = np.random.default_rng(0).binomial(40, 0.6, 200)
    low, high = ends_of(intervals([row | {"rounds": 4} for row in prompts(accepted.tolist())], batch_size=1), "alpha")
    rates = accepted / 40
    half = 1.96 * rates.std() / np.sqrt(len(rates))
    assert (low, high) == pytest.approx((rates.mean() - half, rates.mean() + half), abs=0.1 * half)


def test_what_prompts_do_not_determine_has_no_interval() -> None:
    """One batch of two prompts is one unit; earlier rows lack rounds; nothing is tested where nothing is drafted."""
    rows = prompts([20, 30])
    assert intervals(rows, batch_size=2) == {}
    assert {name.partition("/")[0] for name in intervals(rows, batch_size=1)} == {"alpha", "speedup"}
    assert {name.partition("/")[0] for name in intervals(prompts([0, 0], tested=0), batch_size=1)} == {"speedup"}
