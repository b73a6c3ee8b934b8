"""The operator for attention of few tokens: every shape, dtype and layout, and rows that do not depend on others."""

import pytest
import torch

from framework.kernels.compiled_graphs import why_not
from framework.kernels.small_attention import attend, is_available

pytestmark = pytest.mark.skipif(why_not(torch.device("cpu")) is not None, reason="no C++ compiler")

PLAIN = {"mask": None, "sinks": None, "scale": 0.3, "softcap": None}


@pytest.fixture(scope="module", autouse=True)
def operator():
    assert is_available()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-5), (torch.float64, 1e-12), (torch.bfloat16, 0.02), (torch.float16, 2e-3)]
)
@pytest.mark.parametrize(("size", "value_size"), [(64, 64), (24, 40), (5, 3), (128, 80)])
@pytest.mark.parametrize(("num_tokens", "num_slots"), [(1, 1), (1, 37), (5, 200), (7, 64), (16, 130)])
def test_it_is_softmax_attention(num_tokens, num_slots, size, value_size, dtype, error):
    rows, heads, shared = 2, 6, 2
    query = drawn(rows, num_tokens, heads, size, seed=0).to(dtype).transpose(1, 2)  # as layers have it
    key = drawn(rows, shared, 256, size, seed=1).to(dtype)[:, :, :num_slots]  # of a longer buffer
    value = drawn(rows, shared, 256, value_size, seed=2).to(dtype)[:, :, :num_slots]
    mask = torch.where(drawn(rows, 1, num_tokens, num_slots, seed=3) > 0, 0.0, torch.finfo(torch.float32).min)
    mask[..., 0] = 0
    got = attend(query, key, value, **PLAIN | {"mask": mask})
    each = [tensor.double().repeat_interleave(heads // shared, 1) for tensor in (key, value)]
    weights = (query.double() @ each[0].transpose(2, 3) * 0.3 + mask.double()).softmax(3)
    expected = (weights @ each[1]).transpose(1, 2)
    assert got.dtype == dtype and got.is_contiguous()
    assert (got.double() - expected).abs().max() <= error


def test_a_row_does_not_depend_on_other_rows_or_excluded_slots():
    query, key, value = drawn(2, 6, 5, 32, seed=0), drawn(2, 2, 90, 32, seed=1), drawn(2, 2, 90, 32, seed=2)
    mask = torch.zeros(2, 1, 5, 90)
    mask[..., 70:] = torch.finfo(torch.float32).min
    together = attend(query, key, value, **PLAIN | {"mask": mask})
    for row in range(2):
        for token in range(5):
            alone = attend(
                query[row : row + 1, :, token : token + 1],
                key[row : row + 1, :, :70],
                value[row : row + 1, :, :70],
                **PLAIN,
            )
            assert torch.equal(alone[0, 0], together[row, token])


@pytest.mark.parametrize("excluded", [torch.finfo(torch.float32).min, -torch.inf])
def test_slots_around_those_that_a_row_sees_are_not_read(excluded):
    query, key, value = drawn(3, 4, 2, 32, seed=0), drawn(3, 2, 300, 32, seed=1), drawn(3, 2, 300, 32, seed=2)
    seen = [(0, 300), (37, 290), (200, 202)]  # a text without a window, one with a window, a short window
    mask, finite = torch.full((3, 1, 2, 300), excluded), torch.zeros(3, 1, 300, 1, dtype=torch.bool)
    for row, (first, last) in enumerate(seen):
        mask[row, :, 0, first : last - 1] = mask[row, :, 1, first + 1 : last] = 0
        finite[row, :, first // 16 * 16 : last] = True
    expected = attend(query, key, value, **PLAIN | {"mask": mask})
    got = attend(query, key.where(finite, torch.nan), value.where(finite, torch.nan), **PLAIN | {"mask": mask})
    assert torch.equal(got, expected)


def test_skipped_slots_change_no_sum():
    """Beside a token that sees the first and the last slot nothing is skipped, and the other token's sums are equal."""
    query, key, value = drawn(1, 4, 1, 32, seed=0), drawn(1, 2, 300, 32, seed=1), drawn(1, 2, 300, 32, seed=2)
    for first, last in ((37, 290), (5, 130), (199, 300), (250, 262)):
        mask = torch.full((1, 1, 2, 300), -torch.inf)
        mask[..., 0, first:last] = mask[..., 1, 0] = mask[..., 1, -1] = 0
        beside = attend(query.expand(1, 4, 2, 32), key, value, **PLAIN | {"mask": mask})
        alone = attend(query, key, value, **PLAIN | {"mask": mask[:, :, :1]})
        assert torch.equal(alone[:, 0], beside[:, 0])


def test_heads_may_see_different_slots():
    query, key, value = drawn(1, 4, 1, 32, seed=0), drawn(1, 2, 200, 32, seed=1), drawn(1, 2, 200, 32, seed=2)
    mask = torch.full((1, 4, 1, 200), -torch.inf)
    for head, (first, last) in enumerate([(150, 200), (0, 20), (30, 40), (100, 101)]):
        mask[:, head, :, first:last] = 0
    got = attend(query, key, value, **PLAIN | {"mask": mask})
    for head in range(4):
        one = [each[:, head // 2 : head // 2 + 1] for each in (key, value)]
        alone = attend(query[:, head : head + 1], *one, **PLAIN | {"mask": mask[:, head : head + 1]})
        assert torch.equal(got[:, :, head], alone[:, :, 0])


def test_a_row_that_sees_nothing_takes_the_mean_of_all_values():
    query, key, value = drawn(2, 2, 1, 16, seed=0), drawn(2, 1, 70, 16, seed=1), drawn(2, 1, 70, 16, seed=2)
    mask = torch.full((2, 1, 1, 70), torch.finfo(torch.float32).min)
    mask[1, ..., 20:30] = 0
    got = attend(query, key, value, **PLAIN | {"mask": mask})
    torch.testing.assert_close(got[0, 0], value[0].mean(1).expand(2, -1))


def test_a_mask_for_all_slots_at_once_is_broadcast():
    query, key, value = drawn(2, 4, 3, 16, seed=0), drawn(2, 2, 20, 16, seed=1), drawn(2, 2, 20, 16, seed=2)
    mask = drawn(2, 1, 3, 1, seed=3)
    expected = attend(query, key, value, **PLAIN | {"mask": mask.expand(2, 4, 3, 20).contiguous()})
    assert torch.equal(attend(query, key, value, **PLAIN | {"mask": mask}), expected)


def test_it_is_the_same_on_any_number_of_threads(threads):
    query, key, value = drawn(1, 8, 2, 64, seed=0), drawn(1, 1, 900, 64, seed=1), drawn(1, 1, 900, 64, seed=2)
    together = attend(query, key, value, **PLAIN)
    torch.set_num_threads(1)
    assert torch.equal(together, attend(query, key, value, **PLAIN))


@pytest.mark.parametrize(
    ("key", "given", "message"),
    [
        (torch.ones(1, 2, 4, 8, dtype=torch.float64), PLAIN, "differ in dtype"),
        (torch.ones(1, 2, 0, 8), PLAIN, "there is no slot"),
        (torch.ones(1, 3, 4, 8), PLAIN, "heads of queries"),
        (torch.ones(1, 2, 4, 8), PLAIN | {"mask": torch.ones(1, 1, 1, 4, dtype=torch.bool)}, "is bool"),
    ],
)
def test_what_it_has_no_kernel_for_is_refused(key, given, message):
    assert attend(torch.ones(0, 4, 1, 8), torch.ones(0, 2, 4, 8), torch.ones(0, 2, 4, 8), **PLAIN).shape == (0, 1, 4, 8)
    with pytest.raises(RuntimeError, match=message):
        attend(torch.ones(1, 4, 1, 8), key, torch.ones(1, 2, 4, 8), **given)


def test_a_mask_of_another_dtype_and_a_column_without_dense_rows():
    query, key, value = drawn(1, 2, 3, 16, seed=0), drawn(1, 2, 20, 16, seed=1), drawn(1, 2, 16, 20, seed=2)
    mask = drawn(1, 2, 3, 20, seed=3)
    expected = attend(query, key, value.transpose(2, 3).contiguous(), **PLAIN | {"mask": mask})
    got = attend(query, key, value.transpose(2, 3), **PLAIN | {"mask": mask.double()})
    assert torch.equal(got, expected)
