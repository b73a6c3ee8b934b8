"""Tensors in huge pages: equal copies that share no memory."""

import mmap

import pytest
import torch

from framework.core.memory import mapped_zeros
from framework.kernels import huge_pages
from framework.kernels.huge_pages import in_huge_pages

has_advice = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no such advice")


@has_advice
def test_copies_are_equal_and_apart(monkeypatch):
    monkeypatch.setattr(huge_pages, "CHUNK", 1000)  # some need a chunk of their own
    monkeypatch.setattr(huge_pages, "_CHUNKS", huge_pages._Chunks())
    tensors = [torch.randn(size, 3).to(dtype) for size in (1, 7, 40, 900) for dtype in (torch.float32, torch.bfloat16)]
    tensors.append(torch.arange(-9, 9, dtype=torch.int8).view(2, 9))
    copies = [in_huge_pages([tensor]) for tensor in tensors]
    for tensor, copy in zip(tensors, copies, strict=True):
        assert copy is not tensor
        assert copy.dtype == tensor.dtype and torch.equal(copy, tensor)
        assert copy.data_ptr() % huge_pages.ALIGNMENT == 0
    copies[1].zero_()
    assert all(torch.equal(copies[each], tensors[each]) for each in range(len(tensors)) if each != 1)


@has_advice
def test_a_large_copy_is_freed_with_its_tensor(monkeypatch):
    monkeypatch.setattr(huge_pages, "CHUNK", 1000)
    monkeypatch.setattr(huge_pages, "_CHUNKS", huge_pages._Chunks())
    in_huge_pages([torch.randn(900)])
    assert not len(huge_pages._CHUNKS._chunk)


@has_advice
def test_a_kernel_that_refuses_the_advice_gives_ordinary_pages(monkeypatch):
    class Memory(mmap.mmap):
        def madvise(self, *advice):
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(huge_pages.mmap, "mmap", Memory)
    monkeypatch.setattr(huge_pages, "_CHUNKS", huge_pages._Chunks())
    tensor = torch.randn(5)
    copy = in_huge_pages([tensor])
    assert copy is not tensor and torch.equal(copy, tensor)


@pytest.mark.parametrize("has_huge_pages", [True, False])
def test_copies_lie_one_below_the_other(monkeypatch, has_huge_pages):
    if not has_huge_pages:
        monkeypatch.delattr(huge_pages.mmap, "MADV_HUGEPAGE", raising=False)
    tensors = [torch.randn(3, 2), torch.randn(2, 5).T]
    assert torch.equal(in_huge_pages(tensors), torch.cat(tensors))
    assert torch.equal(mapped_zeros((3, 2), torch.int8, in_huge_pages=True), torch.zeros(3, 2, dtype=torch.int8))


@has_advice
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_zeros_outside_the_heap_have_pages_of_their_own(dtype):
    first, second = (mapped_zeros((3, 5), dtype, in_huge_pages=True) for _ in range(2))
    assert first.dtype == dtype and torch.equal(first, torch.zeros(3, 5, dtype=dtype))
    assert first.data_ptr() % mmap.PAGESIZE == second.data_ptr() % mmap.PAGESIZE == 0
    first.fill_(1)
    assert not second.any()
