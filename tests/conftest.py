"""What holds for all tests."""

from collections.abc import Iterator

import pytest

from experiments.measurement import timing


@pytest.fixture(scope="session", autouse=True)
def parts_are_timed_cold() -> Iterator[None]:
    """The parts of a round are timed without warming up, which is most of a point's time and only steadies its numbers.

    No test looks at how fast anything is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "WARM_UP_SECONDS", 0)
        yield
