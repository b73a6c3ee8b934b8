"""The formulas of Leviathan et al. (2023) as pure functions of acceptance rate and cost.

They assume that acceptance is independent and equally likely at every position and, where no pass times are given, that
a target pass over gamma + 1 tokens takes as long as one over a single token. Times are in target steps, which are
target passes over one token. Every function raises ValueError for an argument outside its range.
"""

from collections.abc import Sequence
from math import inf

from framework.core.validation import check_whole

# Relative difference below which two speedups count as equal: the rounding of another order of computation.
ROUNDING = 1e-12


def expected_tokens(alpha: float, gamma: int) -> float:
    """Expected tokens per round, the target's own one included: 1 + alpha + ... + alpha**gamma (Eq. 1).

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
    """
    _require(0 <= alpha <= 1, "alpha", alpha, "a number in [0, 1]")
    check_whole("gamma", gamma, least=0)
    # The sum needs no special case for alpha = 1 and, unlike the quotient, loses no digits near it.
    return float(sum(alpha**position for position in range(gamma + 1)))


def draft_efficiency(alpha: float, gamma: int) -> float:
    """Accepted tokens per drafted token, for gamma >= 1; alpha, in contrast, is per tested token."""
    check_whole("gamma", gamma, least=1)
    return (expected_tokens(alpha, gamma) - 1) / gamma


def speedup(alpha: float, gamma: int, c: float) -> float:
    """Expected walltime speedup over plain decoding (Theorem 3.8).

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
        c: time of one draft step over time of one target step, >= 0.
    """
    _require(0 <= c < inf, "c", c, "a number >= 0")
    return expected_tokens(alpha, gamma) / (gamma * c + 1)


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """Expected arithmetic operations relative to plain decoding (Theorem 3.11): the price of the speedup.

    Args:
        alpha: acceptance rate, in [0, 1].
        gamma: drafted tokens per round, >= 0.
        c_hat: operations per drafted token over operations per target token, >= 0.
    """
    _require(0 <= c_hat < inf, "c_hat", c_hat, "a number >= 0")
    return (gamma * c_hat + gamma + 1) / expected_tokens(alpha, gamma)


def guaranteed_speedup(alpha: float, c: float) -> float:
    """Lower bound on the speedup of the best gamma (Corollary 3.9): that of gamma = 1, (1 + alpha) / (1 + c).

    Returns 1.0 for alpha <= c, where no gamma improves on plain decoding.
    """
    return max(1.0, speedup(alpha, 1, c))


def cost_over_link(c: float, *, round_trip: float, per_token: float) -> float:
    """Effective c of drafter and target connected by a link (Zheng et al., 2025), with the same optimal gamma.

    A round then takes 1 + round_trip + gamma * (c + per_token) target steps, which is 1 + gamma * (effective c) times
    the time of a round without a draft over the link.

    Args:
        c: time of one draft step over time of one target step, >= 0.
        round_trip: latency of the link per round, whatever the draft's length, in target steps, >= 0.
        per_token: time to send one drafted token with its distribution, in target steps, >= 0.
    """
    for name, value in (("c", c), ("round_trip", round_trip), ("per_token", per_token)):
        _require(0 <= value < inf, name, value, "a number >= 0")
    return (c + per_token) / (1 + round_trip)


def execution_speedup(alpha: float, *, slow: float, fast: float, step: float) -> float:
    """Expected walltime speedup of speculative execution one step ahead over f and g in succession.

    A step takes max(f, fast + g), and g again if the drafted value is replaced; plain execution takes f + g.

    Args:
        alpha: acceptance rate, in [0, 1].
        slow: time of f, which runs in a worker, > 0, in any unit.
        fast: time of the approximation of f, >= 0, in the same unit.
        step: time of g, >= 0, in the same unit.
    """
    _require(0 <= alpha <= 1, "alpha", alpha, "a number in [0, 1]")
    _require(0 < slow < inf, "slow", slow, "a number > 0")
    for name, value in (("fast", fast), ("step", step)):
        _require(0 <= value < inf, name, value, "a number >= 0")
    return (slow + step) / (max(slow, fast + step) + (1 - alpha) * step)


def optimal_gamma(alpha: float, c: float, max_gamma: int, target_times: Sequence[float] | None = None) -> int:
    """The gamma in [0, max_gamma] of largest speedup (Theorem 3.8), the smallest on ties; 0 if none improves.

    Args:
        alpha: acceptance rate, in [0, 1].
        c: time of one draft step over time of one target step, >= 0.
        max_gamma: largest gamma considered, >= 0.
        target_times: times of target passes over 1, 2, ..., max_gamma + 1 tokens, in target steps, > 0; None: all 1.
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


def zero_overhead_speedup(tau: float, draft_time: float, target_time: float) -> float:
    """Speedup of a loop without overhead, from measured times of the models: tau / (d + v).

    Args:
        tau: measured tokens per target pass, >= 0.
        draft_time: d, drafting time per round, in target steps, >= 0.
        target_time: v, time of the target pass over gamma + 1 tokens, in target steps, > 0.
    """
    _require(0 <= tau < inf, "tau", tau, "a number >= 0")
    _require(0 <= draft_time < inf, "draft_time", draft_time, "a number >= 0")
    _require(0 < target_time < inf, "target_time", target_time, "a number > 0")
    return tau / (draft_time + target_time)


def _require(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}; allowed: {allowed}")
