"""What holds for all tests."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hydra import compose

from experiments.config import override_checks
from experiments.config.override_checks import SEARCH_PATH
from experiments.measurement import batch_runner, round_timing, timing
from experiments.results.cache_folder import FOLDER
from framework.decoding import prefill


@pytest.fixture(scope="session", autouse=True)
def parts_are_timed_once() -> Iterator[None]:
    """Parts and rounds are timed few times and cold: repeating them is most of a point's time.

    No test looks at how fast anything is.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "WARM_UP_SECONDS", 0)
        patch.setattr(timing, "BLOCKS", 1)
        patch.setattr(batch_runner, "PART_REPEATS", 1)
        patch.setattr(batch_runner, "COSTS_REPEATS", 1)
        patch.setattr(round_timing, "REPEATS", 1)
        patch.setattr(round_timing, "ROUNDS", 3)
        yield


@pytest.fixture(scope="session", autouse=True)
def profiles_lie_apart_from_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Profiles of rounds and converted models are read from and written to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def checked_configs_are_composed_once() -> Iterator[None]:
    """Checks of overrides share the configs of `conf/` that they compose; Hydra takes a tenth of a second for each."""
    shared = lru_cache(100)(lambda name, lines, with_hydra: compose(name, list(lines), return_hydra_config=with_hydra))

    def composed(name: str, lines: list[str], *, return_hydra_config: bool = False) -> Any:
        if any(line.startswith(SEARCH_PATH) for line in lines):  # their files may change
            return compose(name, lines, return_hydra_config=return_hydra_config)
        return shared(name, tuple(lines), return_hydra_config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(override_checks, "compose", composed)
        yield


@pytest.fixture
def narrow_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers hold what is needed: for thousands of rows of a few tokens, clearing 256 slots each takes a third of the
    time.
    """
    monkeypatch.setattr(prefill, "LEAST_WIDTH", 16)
