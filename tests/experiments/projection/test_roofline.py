"""Times of passes: hand-computed cases, and their limits."""

import pytest

from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.roofline import Roofline

# 1 GB/s, 1 TFLOP/s, 1 µs a launch; 1,000 weights of 4 bytes, a layer of 2 heads of 8 numbers that share keys.
MACHINE = Hardware("slow", "here", 1.0, 1.0, {"float32": 1.0}, launch_microseconds=1.0)
MODEL = ModelSize("small", parameters=1500, read=1000, layers=1, heads=2, kv_heads=1, head_dim=8)


def test_a_pass_by_hand():
    time = Roofline(MACHINE, "float32", kernels_per_layer=3).pass_time(MODEL, batch=2, tokens=5, context=95)
    assert time.weights_reading == pytest.approx(4 * 1000 / 1e9)
    assert time.weights_arithmetic == pytest.approx(2 * 1000 * 2 * 5 / 1e12)
    assert time.attention_reading == pytest.approx(2 * 100 * 2 * 1 * 8 * 4 / 1e9)  # rows, tokens, K and V, head, bytes
    assert time.attention_arithmetic == pytest.approx(2 * 5 * 100 * 2 * 8 * 4 / 1e12)  # tokens x tokens x heads x 8
    assert time.launches == pytest.approx(3e-6)
    assert time.seconds == pytest.approx(4e-6 + 12.8e-6 + 3e-6) and time.bound == "KV cache"
    assert time.attention_share == pytest.approx(12.8 / 19.8)


def test_without_overlap_reading_and_arithmetic_add_up():
    slow = Hardware("slow", "here", 1.0, 1.0, {"float32": 0.001})
    arguments = {"batch": 1, "tokens": 1, "context": 0}
    assert Roofline(slow, "float32").pass_time(MODEL, **arguments).seconds == pytest.approx(4e-6 + 64e-9)
    apart = Roofline(slow, "float32", overlap=False).pass_time(MODEL, **arguments)
    assert apart.seconds == pytest.approx(4e-6 + 2e-6 + 64e-9 + 64e-9)


def test_fewer_bits_shorten_the_reading_of_weights_only():
    wide, narrow = (
        Roofline(MACHINE, "float32", weight_bits=bits).pass_time(MODEL, batch=1, tokens=1, context=10)
        for bits in (None, 8)
    )
    assert narrow.weights_reading == pytest.approx(wide.weights_reading / 4)
    assert narrow.attention_reading == wide.attention_reading
    assert narrow.weights_arithmetic == wide.weights_arithmetic


def test_a_cache_holds_what_all_passes_of_a_round_read_or_nothing():
    cached = Hardware("c", "here", 1.0, 1.0, {"float32": 1.0}, cache_megabytes=0.005, cache_gigabytes_per_second=10.0)
    roofline = Roofline(cached, "float32")
    alone = roofline.pass_time(MODEL, batch=1, tokens=1, context=0)
    assert alone.weights_reading == pytest.approx(4e-7)
    beside = roofline.pass_time(MODEL, batch=1, tokens=1, context=0, beside=1000)
    assert beside.weights_reading == pytest.approx(4e-6)


def test_a_window_bounds_what_a_layer_reads():
    both = ModelSize("w", 1500, 1000, layers=1, heads=2, kv_heads=1, head_dim=8, sliding_layers=3, window=50)
    assert [both.attended(tokens) for tokens in (20, 50, 100)] == [80, 200, 250]


def v(tokens: int, *, batch: int, context: int, machine: Hardware = MACHINE) -> float:
    roofline = Roofline(machine, "float32", kernels_per_layer=0)
    one, more = (roofline.pass_time(MODEL, batch=batch, tokens=each, context=context).seconds for each in (1, tokens))
    return more / one


def test_v_is_1_while_weights_are_read_and_grows_to_the_tokens_in_wide_batches():
    no_attention = ModelSize("m", 1000, 1000, layers=0, heads=1, kv_heads=1, head_dim=1)
    roofline = Roofline(MACHINE, "float32")

    def ratio(batch: int) -> float:
        one, five = (roofline.pass_time(no_attention, batch=batch, tokens=n, context=0).seconds for n in (1, 5))
        return five / one

    assert ratio(1) == ratio(400) == 1  # 4 µs of reading, 2 ns of arithmetic per token
    assert ratio(1000) == pytest.approx(2.5)
    assert [ratio(2000), ratio(10**9)] == pytest.approx([5, 5])
    assert all(ratio(2**n) <= ratio(2 ** (n + 1)) + 1e-12 for n in range(15))


def test_long_contexts_bound_a_pass_by_keys_and_values_which_all_its_tokens_share():
    assert v(5, batch=1, context=10**8) == pytest.approx(1, rel=1e-6)
    # On a machine with little arithmetic, attention of five tokens costs five times as much.
    weak = Hardware("weak", "here", 1.0, 1.0, {"float32": 1e-6})
    assert v(5, batch=1, context=10**8, machine=weak) == pytest.approx(5, rel=1e-6)
    far = Roofline(MACHINE, "float32").pass_time(MODEL, batch=1, tokens=1, context=10**8)
    assert far.attention_share == pytest.approx(1, abs=1e-5)
