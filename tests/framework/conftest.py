"""Fixtures of tests that compile."""

import pytest
import torch

from framework.kernels import compiled_graphs


@pytest.fixture
def quickly(request, monkeypatch):
    """Run traced graphs eagerly except in tests that request `machine_code`."""
    torch._dynamo.reset()
    if "machine_code" not in request.fixturenames:
        monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")


@pytest.fixture
def machine_code():
    """Compile to machine code: seconds per graph, hence for slow tests only."""
