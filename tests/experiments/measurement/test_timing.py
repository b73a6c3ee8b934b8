"""Operations of attention kernels, whose heads may share keys."""

import pytest
from torch.utils.flop_counter import sdpa_flop_count

from experiments.measurement.timing import attention_operations


@pytest.mark.parametrize("num_shared", [1, 2, 8])
def test_attention_has_as_many_operations_with_shared_keys_as_with_copies(num_shared: int) -> None:
    query, key = (3, 8, 5, 16), (3, num_shared, 100, 16)
    copied = (3, 8, 100, 16)
    assert attention_operations(query, key, key, None, False) == sdpa_flop_count(query, copied, copied)
