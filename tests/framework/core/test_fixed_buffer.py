import sys

import psutil
import pytest
import torch

from framework.core.fixed_buffer import FixedBuffer

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count untouched pages as they like")
def test_unused_slots_take_no_memory():
    resident = psutil.Process().memory_info().rss
    wide = FixedBuffer().zeros((256, 1 << 20), dtype=torch.float32, device=CPU)  # 1 GiB
    wide[3, :100] = 1
    assert psutil.Process().memory_info().rss - resident < 1 << 26
    assert (wide[3, :100] == 1).all()
    assert not wide[3, 100:].any()


def test_zeros_are_clear_again():
    buffer = FixedBuffer()
    buffer.zeros((2, 3), dtype=torch.bfloat16, device=CPU).fill_(torch.nan)
    again = buffer.zeros((3, 2), dtype=torch.bfloat16, device=CPU)
    assert again.shape == (3, 2)
    assert not again.any()
