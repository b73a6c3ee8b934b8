"""Property-based tests: a few fixed examples by default, many other examples among the slow tests."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

Property = Callable[..., None]
SLOW_FACTOR = 3
SLOW_SEED = 20230519


def fuzz(examples: int, *, few: bool = True, **inputs: SearchStrategy) -> Callable[[Property], Property]:
    """Turn a property into two tests: of few fixed inputs, and under -m slow of many others.

    A failure reports the smallest failing input found, which should become a named test.

    Args:
        examples: a third of them are fixed inputs; the slow test has SLOW_FACTOR times as many.
        few: whether there is a fast test of a few fixed inputs.
    """
    cases = [*(["few"] if few else []), pytest.param("many", marks=pytest.mark.slow)]

    def decorate(holds: Property) -> Property:
        @pytest.mark.parametrize("inputs_of", cases)
        def test(inputs_of: str) -> None:
            is_slow = inputs_of == "many"
            run = settings(
                max_examples=SLOW_FACTOR * examples if is_slow else max(2, examples // 3),
                derandomize=not is_slow,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )(given(**inputs)(holds))
            (seed(SLOW_SEED)(run) if is_slow else run)()

        return test

    return decorate
