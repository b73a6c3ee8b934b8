"""Imports of a command."""

import gc

import pytest

from experiments.config.command import keeping_all_objects


def test_collections_resume_after_the_imports_and_leave_their_objects_out() -> None:
    kept: list[object] = []
    try:
        with pytest.raises(ImportError), keeping_all_objects():
            assert not gc.isenabled()
            kept.append(kept)
            raise ImportError
        assert gc.isenabled()
        assert not any(each is kept for each in gc.get_objects())
    finally:
        gc.unfreeze()
