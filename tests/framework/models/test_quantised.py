"""Quantised targets: weights loaded from packed integers by transformers, and the packages required."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from drafters.layer_skip import LayerSkip
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models import pretrained
from framework.models.pretrained import fingerprint, load_target
from framework.models.target import Target

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [7] * 20]


def load(folder: Path, **settings: object) -> Target:
    defaults = {"dtype": "float32", "device": "cpu", "attention": "sdpa", "context": None}
    return load_target(path=str(folder), **{**defaults, **settings})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes: pip install bitsandbytes accelerate"),
        ({"load_in_4bit": True}, "bitsandbytes: pip install bitsandbytes accelerate"),
        ({"quant_method": "gptq", "bits": 4}, "gptq: pip install gptqmodel optimum"),
        ({"quant_method": "awq", "bits": 4}, "awq: pip install gptqmodel accelerate"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors: pip install compressed-tensors"),
        ({"quant_method": "torchao"}, "torchao: pip install torchao"),
        ({"quant_method": "rounding"}, "'rounding', which transformers does not know"),
    ],
    ids=str,
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, settings, reason):
    config = json.loads((save_tiny(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"^path is .* cannot be loaded: it is quantised with {reason}; allowed: "):
        load(tmp_path)


class Packed(torch.nn.Module):
    """A layer with eight weights of 4 bits in one integer."""

    def __init__(self, word: int):
        super().__init__()
        self.register_buffer("words", torch.tensor([word, 0], dtype=torch.int32))


def test_every_bit_of_packed_weights_is_part_of_the_fingerprint():
    words = [0x7FFFFF00 + bit for bit in (0, 1, 2, 4)]  # float32 holds 24 bits
    assert len({fingerprint(Packed(word)) for word in words}) == len(words)


def test_angles_that_no_file_holds_are_part_of_the_fingerprint():
    thetas = [{"rope_type": "default", "rope_theta": theta} for theta in (1e4, 5e5)]
    one, other = (tiny_model(rope_parameters=rope) for rope in thetas)
    assert all(weight.equal(other.state_dict()[name]) for name, weight in one.state_dict().items())
    assert fingerprint(one) != fingerprint(other)


def quantised(folder: Path, weights: str) -> Path:
    """Save a tiny model whose linear layers have integer weights."""
    torchao = pytest.importorskip("torchao.quantization")
    from torchao.quantization.granularity import PerGroup
    from transformers import TorchAoConfig

    way = {
        "int8": torchao.Int8WeightOnlyConfig(),
        "int4": torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),
    }[weights]
    source = save_tiny(folder / "source", num_hidden_layers=3)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(source, dtype="float32", quantization_config=TorchAoConfig(way))
    model.save_pretrained(folder / weights)
    logging.enable_progress_bar()
    tiny_tokenizer().save_pretrained(folder / weights)
    return folder / weights


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_quantised_target_is_served_exactly(tmp_path, weights):
    """Logits equal those of a plain model (scale times integer); layer_skip drafts from it."""
    target = load(quantised(tmp_path, weights))
    model, plain = target.model.model, tiny_model(num_hidden_layers=3)
    for name, module in plain.named_modules():
        if isinstance(module, torch.nn.Linear):
            weight = model.get_submodule(name).weight
            if hasattr(weight, "qdata"):
                groups = weight.qdata.float().reshape(*weight.scale.shape, -1)
                module.weight.copy_((groups * weight.scale.unsqueeze(-1)).reshape(weight.shape))
    tokens = torch.tensor([PROMPTS[0]])
    logits = model(input_ids=tokens).logits
    assert torch.allclose(logits, plain(input_ids=tokens).logits, atol=1e-4, rtol=0)
    assert not torch.allclose(logits, tiny_model(num_hidden_layers=3)(input_ids=tokens).logits, atol=1e-4, rtol=0)

    greedy, stopping, seeds = Sampling(temperature=0), Stopping(max_new_tokens=20), list(range(4))
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        for prompt in PROMPTS
    ]
    expected = [row[0, len(prompt) :].tolist() for row, prompt in zip(expected, PROMPTS, strict=True)]
    drafter = LayerSkip(target, layers=None, skip_attention=[1], skip_mlp=[0, 1], exit_after=None)
    decoders = [
        Autoregressive(target=target, sampling=greedy),
        Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=greedy),
    ]
    for decoder in decoders:
        assert decoder.generate(PROMPTS, stopping=stopping, seeds=seeds).tokens == expected


def test_scales_and_packed_integers_are_part_of_the_fingerprint(tmp_path):
    folder = quantised(tmp_path, "int8")
    target = load(folder)
    assert target.fingerprint == load(folder).fingerprint != load(tmp_path / "source").fingerprint
    weight = target.model.model.model.layers[0].mlp.up_proj.weight
    for part in (weight.scale, weight.qdata):
        kept = part[1, 0].clone()
        part[1, 0] = kept + 1
        assert fingerprint(target.model.model) != target.fingerprint
        part[1, 0] = kept
    assert fingerprint(target.model.model) == target.fingerprint
