"""Targets rounded to int8 on loading: exact against themselves, and other models than the ones in the files."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from drafters.prompt_lookup import PromptLookup
from framework.conformance.tiny_models import save_tiny
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.heads.medusa_heads import OUTPUTS, MedusaHeads
from framework.kernels.int8_linear import Int8Linear, round_to_int8
from framework.models.pretrained import load_target

LOADING = {"dtype": "float32", "device": "cpu", "attention": "auto", "context": None}
PROMPTS = [[5, 6, 7, 8, 5, 6], [9]]


def test_weights_are_rounded_to_the_nearest_of_255_numbers():
    torch.manual_seed(0)
    layer = nn.Linear(24, 10)
    layer.weight.data[3] = 0  # a row of zeros has no scale
    rounded = Int8Linear(layer)
    assert rounded.integers.abs().amax(1).tolist() == [127] * 3 + [0] + [127] * 6
    assert ((rounded.weight - layer.weight).abs() <= rounded.scale.unsqueeze(1) * 0.5001).all()
    x = torch.randn(5, 24)
    assert torch.allclose(rounded(x), nn.functional.linear(x, rounded.weight, layer.bias), atol=1e-5)
    assert rounded(x.bfloat16()).dtype == torch.bfloat16
    large = torch.full((1, 24), 1000.0)
    assert torch.allclose(rounded.half()(large.half()).float(), rounded.float()(large), rtol=1e-2)


@pytest.mark.parametrize("output", OUTPUTS)
def test_new_medusa_heads_score_as_the_rounded_output_layer(tmp_path, output):
    target = load_target(path=str(save_tiny(tmp_path, "llama")), weights="int8", **LOADING)
    heads, layer = MedusaHeads(target, num_heads=2, output=output), target.model.model.get_output_embeddings()
    hidden = torch.randn(3, layer.weight.shape[1])
    expected = layer(hidden)[:, None, : target.vocabulary_size].expand(-1, 2, -1)
    assert torch.allclose(heads(hidden), expected, atol=1e-5)
    own = [parameter for name, parameter in heads.named_parameters() if name.startswith("outputs.")]
    assert len(own) == (2 if output == "own" else 0)  # they can be trained
    assert all(parameter.requires_grad for parameter in own)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_speculative_decoding_is_exact_against_the_rounded_target(tmp_path, family):
    folder = str(save_tiny(tmp_path, family))
    plain, rounded = (load_target(path=folder, weights=weights, **LOADING) for weights in (None, "int8"))
    assert rounded.fingerprint != plain.fingerprint
    stopping, sampling = Stopping(max_new_tokens=12), Sampling(temperature=0)
    expected = Autoregressive(target=rounded, sampling=sampling).generate(PROMPTS, stopping=stopping, seeds=[0, 1])
    drafter = PromptLookup(rounded, max_ngram=3, min_ngram=1, match="last")
    engine = Engine(target=rounded, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    assert engine.generate(PROMPTS, stopping=stopping, seeds=[0, 1]).tokens == expected.tokens


def test_only_linear_layers_are_rounded(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(save_tiny(tmp_path))
    embedding = model.get_input_embeddings().weight.clone()
    num_layers = sum(type(module) is nn.Linear for module in model.modules())
    assert round_to_int8(model) == num_layers > 7
    assert isinstance(model.get_output_embeddings(), Int8Linear)
    assert torch.equal(model.get_input_embeddings().weight, embedding)
    assert round_to_int8(model) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": "int4"}, "weights is 'int4'; allowed: int8, or null"),
        ({"weights": "int8", "tensor_parallel": "auto"}, "weights is 'int8'; allowed: null with device_map or tensor"),
    ],
)
def test_wrong_settings_are_refused_before_loading(settings, message):
    with pytest.raises(ValueError, match=message):
        load_target(path="no such folder", **LOADING, **settings)


def test_quantised_files_are_not_rounded_again(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    model.config.quantization_config = {"quant_method": "torchao"}
    monkeypatch.setattr("framework.models.pretrained._load_model", lambda *arguments, **settings: model)
    with pytest.raises(ValueError, match="weights is 'int8', and the weights in the files are already quantised"):
        load_target(path=str(tmp_path), weights="int8", **LOADING)
