"""Imports of a command."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments
from experiments.config.command import _loaded

MODULE = """
import gc
was_enabled, cycle = gc.isenabled(), []
cycle.append(cycle)
main = None
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File of a command named `of_a_test`."""
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(tmp_path)])
    yield tmp_path / "of_a_test.py"
    sys.modules.pop("experiments.of_a_test", None)
    gc.unfreeze()


def test_imports_run_without_garbage_collection(module: Path) -> None:
    module.write_text(MODULE, encoding="utf-8")
    _loaded("of_a_test")
    imported = sys.modules["experiments.of_a_test"]
    assert not imported.was_enabled and gc.isenabled()
    assert not any(each is imported.cycle for each in gc.get_objects())


def test_garbage_collection_goes_on_after_a_failed_import(module: Path) -> None:
    module.write_text("raise ImportError", encoding="utf-8")
    before = gc.get_freeze_count()
    with pytest.raises(ImportError):
        _loaded("of_a_test")
    assert gc.isenabled() and gc.get_freeze_count() == before
