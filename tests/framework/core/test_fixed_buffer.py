"""Buffers on a CPU: zeros in which only written pages exist."""

import sys

import pytest
import torch

from framework.core.fixed_buffer import FixedBuffer
from tests.support.process_memory import in_memory

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_unused_slots_take_no_memory():
    wide = FixedBuffer().zeros((256, 1 << 20), dtype=torch.float32, device=CPU)  # 1 GiB
    wide[3, :100] = 1
    assert in_memory(wide) < 1 << 20
    assert (wide[3, :100] == 1).all()
    assert not wide[3, 100:].any()


@pytest.mark.parametrize("shape", [(3, 2), (7, 0)])
def test_zeros_are_clear_again(shape):
    buffer = FixedBuffer()
    buffer.zeros((2, 3), dtype=torch.bfloat16, device=CPU).fill_(torch.nan)
    again = buffer.zeros(shape, dtype=torch.bfloat16, device=CPU)
    assert again.shape == shape
    assert not again.any()
