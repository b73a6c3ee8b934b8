"""Property-based tests: a few fixed examples by default, many other examples among the slow tests."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

Property = Callable[..., None]
SLOW_FACTOR = 3
SLOW_SEED = 20230519


def fuzz(examples: int, **inputs: SearchStrategy) -> Callable[[Property], Property]:
    """Turn a property into two tests: `examples` fixed inputs, and under -m slow SLOW_FACTOR times as many others.

    A failure reports the smallest failing input found, which should become a named test.
    """

    def decorate(holds: Property) -> Property:
        @pytest.mark.parametrize("factor", [1, pytest.param(SLOW_FACTOR, marks=pytest.mark.slow)], ids=["few", "many"])
        def test(factor: int) -> None:
            run = settings(
                max_examples=factor * examples,
                derandomize=factor == 1,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )(given(**inputs)(holds))
            (run if factor == 1 else seed(SLOW_SEED)(run))()

        return test

    return decorate
