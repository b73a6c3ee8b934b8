"""Folders of the `speculators` package: as the package reads them, and its logits are those of the published formula.

`make check-speculators` verifies the stored logits with the package itself.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.support.published import dflash, eagle3
from tests.support.published.speculators_folders import EAGLE3, FOLDER, NAMES, export_of


@pytest.mark.parametrize("name", NAMES)
def test_an_export_is_the_folder_that_the_package_was_checked_with(tmp_path, name):
    export_of(name).save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads((FOLDER / name / "config.json").read_text())
    expected, saved = (load_file(folder / "model.safetensors") for folder in (FOLDER / name, tmp_path))
    assert saved.keys() == expected.keys() and all(torch.equal(saved[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", ["eagle3", "eagle3_qwen3"])
def test_eagle3s_logits_in_the_package_are_the_published_formula(name):
    config, tensors = eagle3.random_eagle3(**EAGLE3[name])
    stored = load_file(FOLDER / name / "forward.safetensors")
    features, tokens, logits = stored["hidden_states"], stored["input_ids"], stored["logits"]
    for last in range(len(tokens)):
        drafted = tokens[last + 1 : last + len(logits)]
        expected = eagle3.reference_logits(config, tensors, features[: last + 1], tokens[: last + 1], drafted)
        torch.testing.assert_close(logits[: len(expected), last], expected, rtol=0, atol=1e-5)


def test_dflashs_logits_in_the_package_are_the_published_formula():
    config, tensors = dflash.random_dflash()
    stored, target = (load_file(FOLDER / name) for name in ("dflash/forward.safetensors", "target/model.safetensors"))
    ends = {"embeddings": target["model.embed_tokens.weight"], "output": target["lm_head.weight"]}
    features, tokens = stored["hidden_states"], stored["input_ids"]
    for place, logits in enumerate(stored["logits"]):
        pending = int(tokens[place])
        expected = dflash.reference_logits(config, tensors, features[:place], pending, **ends)
        torch.testing.assert_close(logits[1:], expected, rtol=0, atol=1e-5)


def test_peagles_logits_in_the_package_are_the_published_formula():
    config, tensors = eagle3.random_eagle3(**EAGLE3["peagle"])
    stored = load_file(FOLDER / "peagle" / "forward.safetensors")
    features, tokens, logits = stored["hidden_states"], stored["input_ids"], list(stored["logits"])
    masks = torch.full((4,), 49)
    drafts = [
        eagle3.reference_logits(config, tensors, features[: last + 1], tokens[: last + 1], masks)
        for last in range(len(tokens))
    ]
    expected = [drafts[last][depth] for depth in range(5) for last in range(len(tokens) - depth)]
    torch.testing.assert_close(torch.stack(logits), torch.stack(expected), rtol=0, atol=1e-5)
