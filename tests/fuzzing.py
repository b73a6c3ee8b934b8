"""Properties under random input: a few examples, always the same, by default; many others among the slow tests."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

Property = Callable[..., None]
SLOW_FACTOR = 6
SLOW_SEED = 20230519


def fuzz(examples: int, **inputs: SearchStrategy) -> Callable[[Property], Property]:
    """Make a property two tests: `examples` fixed ones, and under -m slow SLOW_FACTOR times as many from another seed.

    A failure shows the smallest input found; what it teaches becomes a test with a name of its own.
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
