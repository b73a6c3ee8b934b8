"""What holds for all tests."""

from collections.abc import Iterator

import pytest

from experiments.measurement import batch_runner, timing
from framework.decoding import prefill


@pytest.fixture(scope="session", autouse=True)
def parts_are_timed_once() -> Iterator[None]:
    """The parts of a round are timed once and cold: repeating them is most of a point's time and steadies its numbers.

    No test looks at how fast anything is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "WARM_UP_SECONDS", 0)
        patch.setattr(timing, "BLOCKS", 1)
        patch.setattr(batch_runner, "PART_REPEATS", 1)
        patch.setattr(batch_runner, "COSTS_REPEATS", 1)
        yield


@pytest.fixture
def narrow_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers hold what is needed: for thousands of rows of a few tokens, clearing 256 slots each takes a third of the
    time.
    """
    monkeypatch.setattr(prefill, "LEAST_WIDTH", 16)
