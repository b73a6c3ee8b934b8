"""Lists of models that Transformers keeps."""

from functools import lru_cache
from inspect import unwrap
from pathlib import Path

import pytest
import transformers
from transformers.utils import import_utils

from experiments.config.quick_imports import LISTING, list_models_once


def test_the_list_of_models_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(transformers.__file__).parent / "models"
    list_folder = lru_cache(unwrap(getattr(import_utils, LISTING)))
    monkeypatch.setattr(import_utils, LISTING, list_folder)
    list_of = import_utils.define_import_structure.__wrapped__
    expected = list_of(str(folder / "__init__.py"))
    list_of(folder)  # as `import transformers`
    list_models_once.__wrapped__()
    made = list_folder.cache_info().misses
    assert list_of(str(folder / "__init__.py")) == expected
    assert list_folder.cache_info().misses == made


def test_a_version_of_transformers_without_this_list_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_utils, LISTING)
    list_models_once.__wrapped__()
    assert not hasattr(import_utils, LISTING)
