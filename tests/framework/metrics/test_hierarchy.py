"""Latency of hierarchies against simulation and Theorem 3.8; the best one against every other."""

import random
from itertools import combinations, pairwise, product

import pytest

from framework.metrics import theory
from framework.metrics.hierarchy import best_hierarchy, drafter_latency, latency


def test_two_models_are_theorem_3_8():
    for alpha, gamma, c in product((0.3, 0.8), (1, 5), (0.05, 0.4)):
        expected = 1 / theory.speedup(alpha, gamma, c)
        assert latency([c, 1], [alpha], [gamma]) == pytest.approx(expected)
        assert drafter_latency([c, 1], [alpha], [gamma]) == pytest.approx(expected)
    assert latency([0.7], [], []) == drafter_latency([0.7], [], []) == 0.7


def simulated(costs: list[float], alphas: list[float], gammas: list[int], rounds: int) -> float:
    """Mean time per token of the drafter's recursion, with an acceptance drawn for every token."""
    dice, spent = random.Random(0), 0.0

    def draft(level: int, tokens: int) -> None:
        nonlocal spent
        if level == 0:
            spent += tokens * costs[0]
            return
        left = tokens + 1
        while left > 0:
            left -= verify(level, max(1, min(gammas[level - 1], left - 1)))

    def verify(level: int, depth: int) -> int:
        nonlocal spent
        draft(level - 1, depth)
        spent += costs[level]
        accepted = 0
        while accepted < depth and dice.random() < alphas[level - 1]:
            accepted += 1
        return accepted + 1

    committed = sum(verify(len(costs) - 1, gammas[-1]) for _ in range(rounds))
    return spent / committed


@pytest.mark.parametrize(
    ("costs", "alphas", "gammas"),
    [([0.02, 0.2, 1], [0.6, 0.8], [3, 6]), ([0.01, 0.05, 0.3, 1], [0.5, 0.7, 0.9], [2, 3, 4])],
)
def test_a_drafter_of_several_levels_takes_the_simulated_time(costs, alphas, gammas):
    found = drafter_latency(costs, alphas, gammas)
    assert found == pytest.approx(simulated(costs, alphas, gammas, 20_000), rel=0.02)
    assert found > latency(costs, alphas, gammas)  # a truncated last round wastes time


@pytest.mark.parametrize("seed", range(6))
def test_the_best_hierarchy_is_the_best_of_all(seed):
    dice = random.Random(seed)
    costs = [*sorted(dice.uniform(0.01, 0.6) for _ in range(3)), 1.0]
    alphas = [[dice.uniform(0.3, 0.98) for _ in range(upper)] for upper in range(4)]
    every = {}
    for size in range(4):
        for smaller in combinations(range(3), size):
            models = (*smaller, 3)
            rates = [alphas[upper][lower] for lower, upper in pairwise(models)]
            for gammas in product(range(1, 6), repeat=size):
                every[models, gammas] = latency([costs[model] for model in models], rates, gammas)
    for most in (1, 2, 3, None):
        found = best_hierarchy(costs, alphas, max_gamma=5, most_models=most)
        least = min(time for (models, _), time in every.items() if len(models) <= (most or 4))
        assert found.latency == pytest.approx(least) == pytest.approx(every[found.models, found.gammas])


def test_three_levels_beat_two_where_the_middle_model_is_worth_it():
    costs, alphas = [0.01, 0.1, 1.0], [[], [0.8], [0.5, 0.9]]
    two, three = (best_hierarchy(costs, alphas, max_gamma=16, most_models=most) for most in (2, 3))
    assert two.models == (1, 2) and three.models == (0, 1, 2) and three.latency < 0.9 * two.latency
    poor = best_hierarchy(costs, [[], [0.1], [0.05, 0.9]], max_gamma=16)
    assert poor.models == (1, 2)


def test_what_is_wrong_is_told():
    with pytest.raises(ValueError, match=r"costs are \[1, 0.5\]; allowed: numbers > 0, the cheapest"):
        latency([1, 0.5], [0.5], [2])
    with pytest.raises(ValueError, match="alphas are"):
        latency([0.5, 1], [1.5], [2])
    with pytest.raises(ValueError, match="gamma is 0"):
        drafter_latency([0.5, 1], [0.5], [0])
