"""Bandit algorithms: EXP3's weights, written out, and an arm that becomes the worse one."""

import math

import pytest

from framework.core.bandits import Exp3, UpperConfidence


def test_exp3_weighs_arms_by_their_estimated_losses() -> None:
    algorithm = Exp3([1.0, 1.0], seed=0)
    assert algorithm.probs == [0.5, 0.5]
    algorithm.observe(0, 0.25)  # an estimated loss of .75 / .5 = 1.5
    second = math.exp(-math.sqrt(math.log(2) / (2 * 2)) * 1.5)
    assert algorithm.probs == pytest.approx([second / (1 + second), 1 / (1 + second)])
    algorithm.observe(1, 0.5)
    losses, rate = (1.5, 0.5 * (1 + second)), math.sqrt(math.log(2) / (3 * 2))
    weights = [math.exp(-rate * loss) for loss in losses]
    assert algorithm.probs == pytest.approx([weight / sum(weights) for weight in weights])


@pytest.mark.parametrize("build", [lambda: Exp3([1, 1], seed=1), lambda: UpperConfidence([1, 1], exploration=0.5)])
def test_an_algorithm_follows_the_better_arm(build) -> None:
    algorithm = build()
    played = []
    for _ in range(600):
        played.append(algorithm.choose())
        algorithm.observe(played[-1], 0.9 if played[-1] else 0.3)
    assert sum(played[300:]) > 240
