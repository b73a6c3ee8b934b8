"""Folders of the `speculators` package: as the package reads them, and its logits are those of the published formula.

`make check-speculators` verifies the stored logits with the package itself.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from framework.heads.speculators_format import speculators_eagle3
from tests.support.published_eagle3 import random_eagle3, reference_logits

FOLDER = Path(__file__).parents[2] / "support" / "speculators"
SETTINGS = {
    "eagle3": {},
    "eagle3_qwen3": {"model_type": "qwen3", "draft_vocab_size": 50, "norm_before_residual": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_export_is_the_folder_that_the_package_was_checked_with(tmp_path, name):
    config, tensors = random_eagle3(**SETTINGS[name])
    target = {"name": "tests/support/speculators/target", "architectures": ["LlamaForCausalLM"]}
    speculators_eagle3(config, tensors, **target, layers=[0, 1, 2], speculative_tokens=5).save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((FOLDER / name / "config.json").read_text())
    expected = load_file(FOLDER / name / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(saved[key], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_packages_logits_are_the_published_formula(name):
    config, tensors = random_eagle3(**SETTINGS[name])
    stored = load_file(FOLDER / name / "forward.safetensors")
    features, tokens, logits = stored["hidden_states"], stored["input_ids"], stored["logits"]
    for last in range(len(tokens)):
        drafted = tokens[last + 1 : last + len(logits)]
        expected = reference_logits(config, tensors, features[: last + 1], tokens[: last + 1], drafted)
        torch.testing.assert_close(logits[: len(expected), last], expected, rtol=0, atol=1e-5)
