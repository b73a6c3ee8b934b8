"""Leviathan's formulas (Leviathan et al., 2023) as pure functions: what acceptance and cost promise.

They take acceptance as independent and equally likely at every position, and, where no pass time is given, a target
pass over gamma + 1 rows as costing what one over a single row costs. Times are in target steps of one row.
Every function raises ValueError for an argument outside its range.
"""

from collections.abc import Sequence
from math import inf

from framework.whole_numbers import check_whole

# Two speedups closer than this are the same number, computed in another order.
ROUNDING = 1e-12


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per round, the target's own one included (Eq. 1); 1 + alpha + ... + alpha**gamma.

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
    """
    _require(0 <= alpha <= 1, "alpha", alpha, "a number in [0, 1]")
    check_whole("gamma", gamma, least=0)
    # The sum needs no case for alpha = 1 and, unlike the quotient, loses no digits near it.
    return float(sum(alpha**position for position in range(gamma + 1)))


def draft_efficiency(alpha: float, gamma: int) -> float:
    """Accepted tokens per drafted token: alpha is over tested tokens, this is over all of gamma >= 1."""
    check_whole("gamma", gamma, least=1)
    return (expected_tokens(alpha, gamma) - 1) / gamma


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Walltime improvement over plain decoding (Theorem 3.8).

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
        c: time of one draft step over time of one target step, >= 0.
    """
    _require(0 <= c < inf, "c", c, "a number >= 0")
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """Arithmetic operations over those of plain decoding (Theorem 3.11): the price of the speedup.

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
        c_hat: operations per drafted token over operations per target token, >= 0.
    """
    _require(0 <= c_hat < inf, "c_hat", c_hat, "a number >= 0")
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def guaranteed_speedup(alpha: float, c: float) -> float:
    """What the best gamma reaches at least (Corollary 3.9): that of gamma 1, (1 + alpha) / (1 + c).

    Returns 1.0 for alpha <= c: no gamma improves, and not speculating is what is left.
    """
    return max(1.0, speedup(alpha, 1, c))


def cost_over_link(c: float, *, round_trip: float, per_token: float) -> float:
    """What stands in for c where drafter and target are apart (Zheng et al., 2025): gamma is best for it, too.

    A round then takes 1 + round_trip + gamma * (c + per_token) target steps, which is 1 + gamma * (this) times what a
    round without a draft takes over the link.

    Args:
        c: time of one draft step over time of one target step, >= 0.
        round_trip: what a round waits for the link, however long its draft is, in target steps, >= 0.
        per_token: time to send one drafted token with its law, in target steps, >= 0.
    """
    for name, value in (("c", c), ("round_trip", round_trip), ("per_token", per_token)):
        _require(0 <= value < inf, name, value, "a number >= 0")
    return (c + per_token) / (1 + round_trip)


def optimal_gamma(alpha: float, c: float, max_gamma: int, target_times: Sequence[float] | None = None) -> int:
    """The gamma in [0, max_gamma] of largest speedup (Theorem 3.8), the smallest on ties; 0 when nothing improves.

    Args:
        alpha: acceptance rate, in [0, 1].
        c: time of one draft step over time of one target step, >= 0.
        max_gamma: largest gamma considered, >= 0.
        target_times: times of the target's passes over 1, 2, ..., max_gamma + 1 rows, > 0; None takes each to be 1.
    """
    _require(0 <= alpha <= 1, "alpha", alpha, "a number in [0, 1]")
    _require(0 <= c < inf, "c", c, "a number >= 0")
    check_whole("max_gamma", max_gamma, least=0)
    times = [1.0] * (max_gamma + 1) if target_times is None else target_times
    complete = len(times) > max_gamma and all(0 < time < inf for time in times)
    _require(complete, "target_times", times, f"{max_gamma + 1} numbers > 0")
    best, largest, tokens = 0, 0.0, 0.0
    for gamma, time in enumerate(times[: max_gamma + 1]):
        tokens += alpha**gamma  # expected_tokens(alpha, gamma), term by term
        reached = tokens / (gamma * c + time)
        if reached > largest * (1 + ROUNDING):
            best, largest = gamma, reached
    return best


def attainable_speedup(tau: float, draft_time: float, target_time: float) -> float:
    """What a loop of no cost of its own would reach with measured models: tau / (d + v).

    Args:
        tau: measured tokens per target pass, >= 0.
        draft_time: d, drafting time per round, >= 0, in target steps of one row.
        target_time: v, time of the target's pass over gamma + 1 rows, > 0, in target steps of one row.
    """
    _require(0 <= tau < inf, "tau", tau, "a number >= 0")
    _require(0 <= draft_time < inf, "draft_time", draft_time, "a number >= 0")
    _require(0 < target_time < inf, "target_time", target_time, "a number > 0")
    return tau / (draft_time + target_time)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
