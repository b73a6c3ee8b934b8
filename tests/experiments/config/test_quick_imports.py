"""Lists of models that Transformers keeps."""

from functools import lru_cache
from inspect import unwrap
from pathlib import Path

import pytest
import transformers
from transformers.utils import import_utils

from experiments.config.quick_imports import list_models_once


def test_the_list_of_models_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(transformers.__file__).parent / "models"
    names_of = lru_cache(unwrap(import_utils.create_import_structure_from_path))
    monkeypatch.setattr(import_utils, "create_import_structure_from_path", names_of)
    list_of = import_utils.define_import_structure.__wrapped__
    expected = list_of(str(folder / "__init__.py"))
    list_of(folder)  # as `import transformers`
    list_models_once.__wrapped__()
    made = names_of.cache_info().misses
    assert list_of(str(folder / "__init__.py")) == expected
    assert names_of.cache_info().misses == made
