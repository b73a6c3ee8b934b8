"""Fused attention equals transformers' eager attention and refuses arguments that it does not implement."""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_attention
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_attention

from framework.kernels import small_attention
from framework.models import attention
from framework.models.attention import Way, as_scores, fused_attention

ROWS, HEADS, SHARED, SLOTS, SIZE, VALUE_SIZE = 2, 4, 2, 9, 8, 6


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module", autouse=True)
def operator():
    assert small_attention.is_available()


@pytest.mark.parametrize("way", [None, *Way])
@pytest.mark.parametrize("mask", ["additive", "bool", "causal", "none"])
@pytest.mark.parametrize("kind", ["plain", "softcap", "sinks"])
def test_it_is_eager_attention(monkeypatch, kind, mask, way):
    if kind != "plain" and way in (Way.SDPA, Way.HEADS):
        pytest.skip("sdpa has neither softcap nor sinks")
    num_tokens = {"causal": SLOTS, "none": 1}.get(mask, 3)
    query = drawn(ROWS, HEADS, num_tokens, SIZE, seed=0)
    key, value = drawn(ROWS, SHARED, SLOTS, SIZE, seed=1), drawn(ROWS, SHARED, SLOTS, VALUE_SIZE, seed=2)
    seen = drawn(ROWS, 1, num_tokens, SLOTS, seed=3) > 0
    seen[..., 0] = True
    seen = {"causal": torch.ones_like(seen).tril(), "none": torch.ones_like(seen)}.get(mask, seen)
    layer = SimpleNamespace(num_key_value_groups=2, is_causal=True, training=False, sinks=drawn(HEADS, seed=4))
    extra = {"plain": {}, "softcap": {"softcap": 1.5}, "sinks": {"s_aux": layer.sinks}}[kind]
    eager = gpt_oss_attention if kind == "sinks" else gemma2_attention
    expected, _ = eager(layer, query, key, value, as_scores(seen, query.dtype), scaling=0.3, **extra)
    given = {"additive": as_scores(seen, query.dtype), "bool": seen}.get(mask)
    if way is not None:
        monkeypatch.setattr(attention, "_way", lambda query, plain: way)
    got, weights = fused_attention(layer, query, key, value, given, scaling=0.3, sliding_window=3, **extra)
    assert weights is None
    assert got.shape == expected.shape and torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("way", [Way.PRODUCTS, Way.OPERATOR])
@pytest.mark.parametrize("kind", ["softcap", "sinks"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_rounded_once_at_the_end(monkeypatch, dtype, kind, way):
    query, key, value = (
        drawn(ROWS, heads, tokens, 64, seed=seed).to(dtype)
        for seed, (heads, tokens) in enumerate([(HEADS, 3), (SHARED, SLOTS), (SHARED, SLOTS)])
    )
    layer = SimpleNamespace(num_key_value_groups=2, is_causal=True, training=False)
    extra = {"softcap": {"softcap": 1.5}, "sinks": {"s_aux": drawn(HEADS, seed=4)}}[kind]
    mask = torch.zeros(ROWS, 1, 3, SLOTS)
    monkeypatch.setattr(attention, "_way", lambda query, plain: way)
    got, _ = fused_attention(layer, query, key, value, mask.to(dtype), scaling=0.3, **extra)
    exact, _ = fused_attention(layer, query.double(), key.double(), value.double(), mask.double(), scaling=0.3, **extra)
    assert got.dtype == dtype
    assert ((got.double() - exact).abs() <= 0.51 * torch.finfo(dtype).eps * exact.abs() + 1e-5).all()


@pytest.mark.parametrize("name", ["head_mask", "indices", "sinks", "output_attentions"])
def test_an_argument_that_it_does_not_implement_is_refused(name):
    query = key = value = drawn(1, 1, 1, SIZE, seed=0)
    layer = SimpleNamespace(num_key_value_groups=1, is_causal=True)
    fused_attention(layer, query, key, value, None, **{name: None})
    with pytest.raises(TypeError, match=f"fused attention does not implement {name}"):
        fused_attention(layer, query, key, value, None, **{name: torch.ones(1)})
