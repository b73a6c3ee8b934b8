"""Formulas against their papers' figures and against their definitions.

A figure of n decimals agrees within half of its last digit. Each case's id names the figure's table (of Leviathan et
al., 2023, unless another paper is named) or setting.
"""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.metrics import theory

HUNDREDTH = 0.005 + 1e-9
TENTH = 0.05 + 1e-9
alphas = st.floats(0, 1)
ratios = st.floats(0, 2)
gammas = st.integers(0, 40)
repeatable = settings(derandomize=True, deadline=None)  # no deadline: a busy machine is no failure


@pytest.mark.parametrize(
    ("alpha", "gamma", "operations", "speed"),
    [
        pytest.param(0.6, 2, 1.53, 1.96, id="Table 1: alpha .6, gamma 2"),
        pytest.param(0.7, 3, 1.58, 2.53, id="Table 1: alpha .7, gamma 3"),
        pytest.param(0.8, 2, 1.23, 2.44, id="Table 1: alpha .8, gamma 2"),
        pytest.param(0.8, 5, 1.63, 3.69, id="Table 1: alpha .8, gamma 5"),
        pytest.param(0.9, 2, 1.11, 2.71, id="Table 1: alpha .9, gamma 2"),
        pytest.param(0.9, 10, 1.60, 6.86, id="Table 1: alpha .9, gamma 10"),
    ],
)
def test_operations_and_speed_of_a_free_drafter(alpha: float, gamma: int, operations: float, speed: float) -> None:
    assert theory.operations_factor(alpha, gamma, c_hat=0) == pytest.approx(operations, abs=HUNDREDTH)
    assert theory.speedup(alpha, gamma, c=0) == pytest.approx(speed, abs=HUNDREDTH)


OPTIMA = {
    0.01: [(5, 1.88), (7, 2.30), (9, 2.97), (14, 4.23), (24, 7.49)],
    0.02: [(4, 1.79), (6, 2.17), (8, 2.76), (11, 3.82), (19, 6.37)],
    0.05: [(3, 1.63), (4, 1.92), (6, 2.35), (8, 3.09), (13, 4.67)],
    0.10: [(2, 1.46), (3, 1.67), (4, 1.98), (6, 2.47), (10, 3.43)],
    0.20: [(1, 1.25), (2, 1.40), (3, 1.58), (4, 1.87), (7, 2.37)],
}


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "speed"),
    [
        pytest.param(alpha, c, gamma, speed, id=f"Theorem 3.8 optimum: alpha {alpha}, c {c}")
        for c, row in OPTIMA.items()
        for alpha, (gamma, speed) in zip([0.5, 0.6, 0.7, 0.8, 0.9], row, strict=True)
    ],
)
def test_optimal_gamma(alpha: float, c: float, gamma: int, speed: float) -> None:
    assert theory.optimal_gamma(alpha, c, max_gamma=100) == gamma
    assert theory.speedup(alpha, gamma, c) == pytest.approx(speed, abs=HUNDREDTH)


@pytest.mark.parametrize("gamma", [1, 2, 3, 5])
@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_a_tie_goes_to_the_smaller_gamma(alpha: float, gamma: int) -> None:
    # Theorem 3.8 solved for the c at which gamma + 1 and gamma are equally fast; .2 for alpha .5 and gamma 1.
    gained = alpha ** (gamma + 1)
    c = gained / (theory.expected_tokens(alpha, gamma) - gamma * gained)
    assert theory.speedup(alpha, gamma, c) == pytest.approx(theory.speedup(alpha, gamma + 1, c), rel=1e-14)
    assert theory.optimal_gamma(alpha, c, max_gamma=20) == gamma


@pytest.mark.parametrize(
    ("gamma", "alpha", "c", "expected"),
    [
        pytest.param(7, 0.75, 0.02, 3.2, id="Table 4: EnDe, small, T=0"),
        pytest.param(7, 0.80, 0.04, 3.3, id="Table 4: EnDe, base, T=0"),
        pytest.param(7, 0.82, 0.11, 2.5, id="Table 4: EnDe, large, T=0"),
        pytest.param(7, 0.62, 0.02, 2.3, id="Table 4: EnDe, small, T=1"),
        pytest.param(5, 0.68, 0.04, 2.4, id="Table 4: EnDe, base, T=1"),
        pytest.param(3, 0.71, 0.11, 2.0, id="Table 4: EnDe, large, T=1"),
        pytest.param(5, 0.65, 0.02, 2.4, id="Table 4: CNNDM, small, T=0"),
        pytest.param(5, 0.73, 0.04, 2.6, id="Table 4: CNNDM, base, T=0"),
        pytest.param(3, 0.74, 0.11, 2.0, id="Table 4: CNNDM, large, T=0"),
        pytest.param(5, 0.53, 0.02, 1.9, id="Table 4: CNNDM, small, T=1"),
        pytest.param(3, 0.55, 0.04, 1.8, id="Table 4: CNNDM, base, T=1"),
        pytest.param(3, 0.56, 0.11, 1.6, id="Table 4: CNNDM, large, T=1"),
    ],
)
def test_expected_walltime_improvement(gamma: int, alpha: float, c: float, expected: float) -> None:
    # The paper's alpha and c are unrounded.
    assert theory.speedup(alpha, gamma, c) == pytest.approx(expected, abs=0.07)


@pytest.mark.parametrize(
    ("alpha", "gamma", "speed"),
    [
        pytest.param(0.62, 7, 2.33, id="Table 5: T5-small, l=1"),
        pytest.param(0.71, 9, 2.94, id="Table 5: T5-small, l=.5"),
        pytest.param(0.76, 10, 3.45, id="Table 5: T5-small, l=.3"),
        pytest.param(0.84, 15, 4.79, id="Table 5: T5-small, l=.1"),
    ],
)
def test_largest_speedup_under_lenience(alpha: float, gamma: int, speed: float) -> None:
    assert theory.optimal_gamma(alpha, 0.015, max_gamma=100) == gamma
    assert theory.speedup(alpha, gamma, 0.015) == pytest.approx(speed, abs=HUNDREDTH)


@pytest.mark.parametrize(
    ("alpha", "speed"),
    [
        pytest.param(0.75, 3.3, id="A.5, T=0: T5-small, l=1 and .5"),
        pytest.param(0.80, 3.9, id="A.5, T=0: T5-small, l=.3"),
        pytest.param(0.87, 4.9, id="A.5, T=0: T5-small, l=.1"),
    ],
)
def test_greedy_lenience(alpha: float, speed: float) -> None:
    assert theory.speedup(alpha, 8, 0.015) == pytest.approx(speed, abs=TENTH)


@pytest.mark.parametrize(
    ("alpha", "c", "speed"),
    [
        pytest.param(0.90, 0.63, 1.20, id="Draft & Verify, 13B set: alpha .9"),
        pytest.param(0.98, 0.63, 1.37, id="Draft & Verify, 13B set: alpha .98"),
        pytest.param(0.90, 0.52, 1.35, id="Draft & Verify, 70B set: alpha .9"),
        pytest.param(0.98, 0.52, 1.62, id="Draft & Verify, 70B set: alpha .98"),
        pytest.param(0.98, 0.40, 1.99, id="Draft & Verify, abstract: c for 1.99x at alpha .98"),
    ],
)
def test_ceiling_of_layer_skipping(alpha: float, c: float, speed: float) -> None:
    def ceiling(c: float) -> float:
        return theory.speedup(alpha, theory.optimal_gamma(alpha, c, max_gamma=100), c)

    # c is a share of parameters, printed with two digits: some c that rounds to it gives the figure.
    assert ceiling(c + HUNDREDTH) - HUNDREDTH <= speed <= ceiling(c - HUNDREDTH) + HUNDREDTH


def test_negligible_cost_drafter() -> None:
    # Section 3.6: bigram, English to German, alpha .2, gamma 3.
    assert theory.speedup(0.2, 3, c=0) == pytest.approx(1.248, abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "bound"),
    [
        pytest.param(0.08, 1.09, id="Table 3: unigram, EnDe"),
        pytest.param(0.03, 1.03, id="Table 3: unigram, lm1b"),
        pytest.param(0.23, 1.30, id="Table 3: bigram, CNNDM"),
    ],
)
def test_bound_of_a_free_drafter(alpha: float, bound: float) -> None:
    assert theory.expected_tokens(alpha, 1000) == pytest.approx(1 / (1 - alpha), rel=1e-12)
    assert theory.speedup(alpha, 1000, c=0) == pytest.approx(bound, abs=HUNDREDTH)


def test_draft_efficiency() -> None:
    assert theory.draft_efficiency(0.8, 4) == pytest.approx(0.59, abs=HUNDREDTH)
    assert theory.draft_efficiency(1, 7) == 1
    assert theory.draft_efficiency(0, 7) == 0


@repeatable
@given(alpha=alphas, gamma=gammas)
def test_expected_tokens_is_the_mean_of_a_capped_geometric(alpha: float, gamma: int) -> None:
    probs = [alpha ** (count - 1) * (1 - alpha) for count in range(1, gamma + 1)] + [alpha**gamma]
    assert math.fsum(probs) == pytest.approx(1)
    mean = math.fsum(count * share for count, share in enumerate(probs, start=1))
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("gamma", [0, 1, 7])
def test_certain_acceptance_commits_the_whole_draft(gamma: int) -> None:
    assert theory.expected_tokens(1, gamma) == gamma + 1
    assert theory.expected_tokens(math.nextafter(1, 0), gamma) == pytest.approx(gamma + 1, rel=1e-12)


@repeatable
@given(alpha=alphas, c=ratios)
def test_optimal_gamma_is_the_first_maximum(alpha: float, c: float) -> None:
    speeds = [theory.speedup(alpha, gamma, c) for gamma in range(21)]
    gamma = theory.optimal_gamma(alpha, c, max_gamma=20)
    assert speeds[gamma] >= max(speeds) * (1 - 1e-10)
    assert all(speed < speeds[gamma] for speed in speeds[:gamma])


@repeatable
@given(alpha=alphas, c=ratios)
def test_some_gamma_reaches_the_guarantee_and_none_helps_below_it(alpha: float, c: float) -> None:
    guaranteed = theory.guaranteed_speedup(alpha, c)
    gamma = theory.optimal_gamma(alpha, c, max_gamma=20)
    assert theory.speedup(alpha, gamma, c) >= guaranteed * (1 - 1e-10)
    if alpha > c:
        assert guaranteed == pytest.approx((1 + alpha) / (1 + c))
    else:
        assert (guaranteed, gamma) == (1, 0)


def test_optimal_gamma_stays_within_its_bound() -> None:
    assert theory.optimal_gamma(1, 0, max_gamma=6) == 6
    assert theory.optimal_gamma(0.9, 0.01, max_gamma=0) == 0
    assert theory.optimal_gamma(1, 0, max_gamma=6, target_times=[1.0] * 20) == 6


@repeatable
@given(alpha=alphas, c=ratios, times=st.lists(st.floats(0.5, 4), min_size=1, max_size=12))
def test_optimal_gamma_reaches_most_of_what_is_zero_overhead_speedup(
    alpha: float, c: float, times: list[float]
) -> None:
    def zero_overhead(gamma: int) -> float:
        return theory.zero_overhead_speedup(theory.expected_tokens(alpha, gamma), gamma * c, times[gamma])

    gamma = theory.optimal_gamma(alpha, c, len(times) - 1, times)
    assert zero_overhead(gamma) >= max(map(zero_overhead, range(len(times)))) * (1 - 1e-10)


def test_a_wider_pass_that_costs_more_makes_the_best_gamma_smaller() -> None:
    assert theory.optimal_gamma(0.8, 0.05, max_gamma=20) == 8
    # Each further row costs as much as the first: no draft pays at any alpha.
    assert theory.optimal_gamma(0.99, 0, 20, [float(rows) for rows in range(1, 22)]) == 0


@repeatable
@given(alpha=alphas, gamma=gammas, c=ratios)
def test_zero_overhead_speedup_is_the_theorem_where_its_assumptions_hold(alpha: float, gamma: int, c: float) -> None:
    zero_overhead = theory.zero_overhead_speedup(theory.expected_tokens(alpha, gamma), gamma * c, 1)
    assert zero_overhead == pytest.approx(theory.speedup(alpha, gamma, c))


def test_zero_overhead_speedup_pays_for_a_wider_target_pass() -> None:
    assert theory.zero_overhead_speedup(3, draft_time=0.5, target_time=1.5) == 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(1.01, 4), r"alpha is 1\.01; allowed: a number in \[0, 1\]"),
        (lambda: theory.expected_tokens(-0.1, 4), "alpha is -0.1"),
        (lambda: theory.expected_tokens(math.nan, 4), "alpha is nan"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma is -1; allowed: a whole number >= 0"),
        (lambda: theory.expected_tokens(0.5, 1.5), "gamma is 1.5"),
        (lambda: theory.draft_efficiency(0.5, 0), "gamma is 0; allowed: a whole number >= 1"),
        (lambda: theory.speedup(0.5, 4, -0.1), "c is -0.1; allowed: a number >= 0"),
        (lambda: theory.speedup(0.5, 4, math.inf), "c is inf"),
        (lambda: theory.operations_factor(0.5, 4, -1), "c_hat is -1"),
        (lambda: theory.guaranteed_speedup(2, 0.1), "alpha is 2"),
        (lambda: theory.optimal_gamma(0.5, 0.1, -1), "max_gamma is -1"),
        (lambda: theory.optimal_gamma(1.5, 0.1, 2), "alpha is 1.5"),
        (lambda: theory.optimal_gamma(0.5, math.nan, 2), "c is nan"),
        (
            lambda: theory.optimal_gamma(0.5, 0.1, 2, [1.0, 1.0]),
            r"target_times is \[1.0, 1.0\]; allowed: 3 numbers > 0",
        ),
        (lambda: theory.optimal_gamma(0.5, 0.1, 1, [1.0, 0.0]), "target_times"),
        (lambda: theory.zero_overhead_speedup(-1, 0, 1), "tau is -1"),
        (lambda: theory.zero_overhead_speedup(2, -1, 1), "draft_time is -1"),
        (lambda: theory.zero_overhead_speedup(2, 0, 0), "target_time is 0; allowed: a number > 0"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_speculative_execution_takes_the_longer_function_and_repeats_g_after_replacements() -> None:
    assert theory.execution_speedup(1, slow=2, fast=0, step=1) == 1.5
    assert theory.execution_speedup(0, slow=2, fast=0, step=1) == 1  # no gain, no loss
    assert theory.execution_speedup(0.5, slow=1, fast=0.5, step=2) == pytest.approx(3 / 3.5)
    with pytest.raises(ValueError, match="slow is 0"):
        theory.execution_speedup(0.5, slow=0, fast=0, step=1)
