"""Fixtures of the operators' tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(params=[1, 3, 8])
def threads(request) -> Iterator[None]:
    """Some numbers of threads; the suite runs with one, which leaves whole tiles to each."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)
