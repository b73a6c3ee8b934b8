"""Pages of a mapped file leave memory if none has changed."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from framework.kernels import file_pages
from framework.kernels.file_pages import drop_unchanged_pages
from tests.support.process_memory import in_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


@pytest.fixture
def weight(tmp_path: Path) -> torch.Tensor:
    """[1024, 1024] a weight in a mapped file, all of whose pages are in memory."""
    generator = torch.Generator().manual_seed(0)
    save_file({"weight": torch.randn(1024, 1024, generator=generator)}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        loaded = file.get_tensor("weight")
    loaded.sum()
    return loaded


def test_unchanged_pages_leave_memory_and_come_back(weight: torch.Tensor) -> None:
    before, given = in_memory(weight), weight.clone()
    drop_unchanged_pages(weight)
    assert in_memory(weight) < before - weight.nbytes * 7 / 8
    assert torch.equal(weight, given)


def test_a_changed_weight_stays_in_memory(weight: torch.Tensor) -> None:
    weight[512, 7] = 3
    before, given = in_memory(weight), weight.clone()
    drop_unchanged_pages(weight)
    assert in_memory(weight) > before - weight.nbytes / 8
    assert torch.equal(weight, given)


def test_ordinary_memory_and_parts_of_pages_stay() -> None:
    for tensor in (torch.ones(2**20), torch.ones(3), torch.ones(0), torch.ones(1024, 1024).T):
        drop_unchanged_pages(tensor)
        assert bool((tensor == 1).all())


def test_without_a_list_of_pages_nothing_is_dropped(weight: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "PAGES", Path("/nowhere"))
    before = in_memory(weight)
    drop_unchanged_pages(weight)
    assert in_memory(weight) > before - weight.nbytes / 8
