"""Presets: all load, state their sources, and agree with published sizes; a folder's config.json is read, too."""

import json

import pytest
import yaml

from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.presets import PRESETS, names
from experiments.projection.validation import recorded_passes


@pytest.mark.parametrize("name", names("hardware"))
def test_hardware_loads_and_names_its_source_and_what_is_unverified(name):
    hardware = Hardware.read("hardware", name)
    assert len(hardware.source) > 20
    # More arithmetic in a narrower dtype, and a number that is not too far from any other machine's.
    rates = [hardware.teraflops[dtype] for dtype in ("float32", "bfloat16", "float8") if dtype in hardware.teraflops]
    assert rates == sorted(rates) and 1 < 1000 * rates[0] / hardware.gigabytes_per_second < 200
    known = {
        "gigabytes",
        "gigabytes_per_second",
        "launch_microseconds",
        *(f"teraflops.{d}" for d in hardware.teraflops),
    }
    assert set(hardware.unverified) <= known


def test_shares_of_the_stated_rates():
    half = Hardware.read("hardware", "epyc_genoa_2_cores").reaching(bandwidth=0.5, arithmetic=0.25)
    assert half.bandwidth(1e9) == pytest.approx(22.45e9) and half.bandwidth(1e6) == pytest.approx(53.5e9)
    assert half.flops("float32") == pytest.approx(0.25 * 0.166e12)


def test_there_are_a_dozen_gpus_and_cpus():
    assert len(names("hardware")) >= 12


@pytest.mark.parametrize("name", names("models"))
def test_models_have_the_published_number_of_parameters(name):
    size = ModelSize.chosen("target_models", name)  # refuses any other number
    assert "config.json" in size.source and size.read <= size.parameters
    values = yaml.safe_load((PRESETS / "models" / f"{name}.yaml").read_text())["config"]
    hidden, heads, keys = values["hidden_size"], size.heads * size.head_dim, size.kv_heads * size.head_dim
    layer = 2 * hidden * (heads + keys) + 3 * hidden * values["intermediate_size"]
    assert size.read == pytest.approx(size.layers * layer + values["vocab_size"] * hidden, rel=1e-3)  # and norms


def test_exact_counts_of_two_published_models():
    one, eight = (ModelSize.chosen("target_models", name) for name in ("llama_3_2_1b", "llama_3_1_8b"))
    assert (one.parameters, one.read) == (1_235_814_400, 1_235_814_400)
    assert (eight.parameters, eight.read) == (8_030_261_248, 8_030_261_248 - 128_256 * 4096)


def test_recorded_passes_have_the_recorded_sizes():
    six, _, fifty, large = (each.model for each in recorded_passes())
    assert [round(each.parameters / 1e6) for each in (six, fifty, large)] == [6, 52, 148]
    assert 4 * large.read / 1e6 == pytest.approx(494.7, abs=0.1)


def test_a_folder_with_a_config_is_read(tmp_path):
    config = {"model_type": "gemma3_text", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 6,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 50,
              "sliding_window": 24, "architectures": ["Gemma3ForCausalLM"]}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = ModelSize.chosen("draft_model", str(tmp_path))
    assert (size.layers, size.sliding_layers, size.window, size.kv_heads) == (1, 5, 24, 1)
    assert size.read == size.parameters  # its embeddings are the output layer


def test_a_number_of_parameters_other_than_the_configs_is_refused(tmp_path):
    own = yaml.safe_load((PRESETS / "models" / "llama_3_2_1b.yaml").read_text())
    for billions, says in ((1.3, "1.24, the parameters of its config"), ("1B", "a number > 0")):
        (tmp_path / "own.yaml").write_text(yaml.safe_dump({**own, "billions": billions}))
        with pytest.raises(ValueError, match=f"billions is .*; allowed: {says}"):
            ModelSize.chosen("draft_model", str(tmp_path / "own.yaml"))


@pytest.mark.parametrize(("values", "says"), [
    ({"model_type": "mixtral"}, "whose config has num_experts; allowed: a decoder without experts"),
    ({"model_type": "t5"}, "not built"),
    ({"model_type": "nonsense"}, "allowed: a config with model_type"),
])  # fmt: skip
def test_other_models_are_refused(values, says):
    with pytest.raises(ValueError, match=says):
        ModelSize.of_values(values, name="it", source="", key="target_models")


def test_a_yaml_of_ones_own_is_read_and_its_mistakes_are_named(tmp_path):
    good = yaml.safe_load((PRESETS / "hardware" / "l4.yaml").read_text())
    file = tmp_path / "mine.yaml"

    def read(**changes) -> Hardware:
        file.write_text(yaml.safe_dump({key: value for key, value in {**good, **changes}.items() if value != "none"}))
        return Hardware.read("hardware", str(file))

    assert read(gigabytes_per_second=123).gigabytes_per_second == 123
    for changes, says in [
        ({"gigabyte": 3}, "a key of hardware .* is 'gigabyte'; did you mean gigabytes"),
        ({"source": "none"}, "lacks source"),
        ({"gigabytes": -1}, "gigabytes is -1; allowed: a number > 0"),
        ({"teraflops": {"float23": 1}}, "allowed: rates of some of float32"),
        ({"launch_microseconds": "x"}, "launch_microseconds is 'x'; allowed: a number > 0"),
        ({"cache_megabytes": 3}, "cache_gigabytes_per_second is 0; allowed: a number > 0"),
    ]:
        with pytest.raises(ValueError, match=says):
            read(**changes)
    file.write_text("- 1")
    with pytest.raises(ValueError, match="which is no mapping"):
        Hardware.read("hardware", str(file))
