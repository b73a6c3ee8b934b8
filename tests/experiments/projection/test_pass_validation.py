"""Predicted beside measured passes, and the microbenchmark of this machine."""

import pytest
import torch

from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.this_machine import measure_hardware
from experiments.projection.validation import MeasuredPasses, compare_passes, recorded_passes, timed_here

TINY = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64,
        "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip


def test_errors_by_hand():
    # 1 GB/s and 1 GFLOP/s: 4 µs of reading, 2 µs of arithmetic per token, and nothing else.
    machine = Hardware("slow", "here", 1.0, 1.0, {"float32": 0.001})
    model = ModelSize("m", 1000, 1000, layers=0, heads=1, kv_heads=1, head_dim=1)
    passes = MeasuredPasses(model, {}, "slow", 0, {5: 0.02, 1: 0.005}, "here")
    one, five = compare_passes([passes], machine, "float32", kernels_per_layer=10)
    assert (one.tokens, one.overlapping_ms, one.successive_ms) == pytest.approx((1, 0.004, 0.006))
    assert (one.overlapping_error, one.successive_error) == pytest.approx((-0.2, 0.2))
    assert (five.overlapping_ms, five.successive_ms, five.bound) == (
        pytest.approx(0.01),
        pytest.approx(0.014),
        "arithmetic",
    )


def test_recorded_single_row_passes_are_predicted_within_a_third_where_weights_are_read_from_memory():
    hardware = Hardware.read("hardware", "epyc_genoa_2_cores")
    found = compare_passes(recorded_passes(), hardware, "float32", kernels_per_layer=10)
    single = {each.model: each for each in found if each.tokens == 1}
    assert set(single) == {"6M", "16M", "52M", "148M"}
    assert all(abs(single[name].overlapping_error) < 1 / 3 for name in ("16M", "52M", "148M"))


def test_passes_are_timed_and_this_machine_is_measured():
    model = ModelSize.of_values(TINY, name="tiny", source="", key="passes")
    recorded = MeasuredPasses(model, TINY, "elsewhere", 12, {1: 9.0, 3: 9.0}, "elsewhere")
    timed = timed_here(recorded, torch.device("cpu"), "float32", compiled=False)
    assert sorted(timed.milliseconds) == [1, 3] and all(0 < each < 1000 for each in timed.milliseconds.values())
    machine = measure_hardware(torch.device("cpu"), "float32", mebibytes=4, product=64)
    assert machine.gigabytes_per_second > 0 and machine.flops("float32") > 0 and machine.launch_microseconds > 0
    with pytest.raises(ValueError, match="dtype is float8"):
        measure_hardware(torch.device("cpu"), "float8", mebibytes=1, product=8)
