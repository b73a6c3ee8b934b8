"""Exported heads come back as they were, in both layouts, under the published names."""

import json

import pytest
import torch
from safetensors.torch import load_file

from framework.conformance.tiny_models import tiny_target
from framework.core.option_error import OptionError
from framework.heads.medusa_export import original_medusa, vllm_medusa
from framework.heads.medusa_heads import OUTPUTS, MedusaHeads, load_heads, save_heads
from tests.support.published.medusa import save_published_heads

WRITERS = {"medusa": original_medusa, "medusa_vllm": vllm_medusa}
ACCURACIES = [[0.5, 0.2], [0.4, 0.1]]


def heads_folder(folder, target, output) -> str:
    heads = MedusaHeads(target, num_heads=2, output=output)
    random = torch.Generator().manual_seed(0)
    for parameter in heads.parameters():
        parameter.data += torch.randn(parameter.shape, generator=random) * 0.2
    save_heads(folder, heads, target=target, accuracies=ACCURACIES)
    return str(folder)


def exported(path, target, name, folder) -> str:
    WRITERS[name](path, target, name="the target").save(folder)
    return str(folder)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", WRITERS)
def test_heads_come_back_as_they_were(tmp_path, name, output):
    target = tiny_target()
    path = heads_folder(tmp_path / "ours", target, output)
    before, _ = load_heads(path, target)
    after, accuracies = load_heads(exported(path, target, name, tmp_path / "exported"), target)
    assert accuracies == ACCURACIES
    assert torch.equal(after.weights, before.weights) and torch.equal(after.biases, before.biases)
    hidden = torch.randn(5, 32)
    if output == "mapped":  # rounded once more, in the product
        torch.testing.assert_close(after(hidden), before(hidden))
    else:
        assert torch.equal(after(hidden), before(hidden))


def test_the_layouts_have_the_published_names(tmp_path):
    target = tiny_target()
    own, tied = (heads_folder(tmp_path / output, target, output) for output in ("own", "tied"))
    blocks = {f"{head}.0.linear.{kind}" for head in (0, 1) for kind in ("weight", "bias")}
    for path, name, file, expected, settings in (
        (own, "medusa", "medusa_lm_head", blocks | {"0.1.weight", "1.1.weight"}, {"medusa_num_heads": 2}),
        (tied, "medusa", "medusa_lm_head", blocks, {"medusa_num_layers": 1, "version": "2"}),
        (tied, "medusa_vllm", "model",
         {f"blocks.{head}.layers.0.{kind}" for head in (0, 1) for kind in ("weight", "bias")} | {"lm_heads.0.weight"},
         {"model_type": "medusa", "num_heads": 2, "vocab_size": 50, "medusa_fc_bias": True, "original_lm_head": True}),
    ):  # fmt: skip
        folder = tmp_path / f"{name} of {path[-4:]}"
        exported(path, target, name, folder)
        assert load_file(folder / f"{file}.safetensors").keys() == expected
        assert settings.items() <= json.loads((folder / "config.json").read_text()).items()


def test_published_heads_can_be_converted(tmp_path):
    target, hidden = tiny_target(), torch.randn(3, 32)
    save_published_heads(tmp_path / "original", target, layout="pickled", blocks=2)
    before = load_heads(str(tmp_path / "original"), target)[0](hidden)
    path = exported(str(tmp_path / "original"), target, "medusa_vllm", tmp_path / "vllm")
    assert torch.equal(load_heads(path, target)[0](hidden), before)


def test_an_output_layer_with_a_bias_is_refused(tmp_path):
    target = tiny_target("phi")
    path = heads_folder(tmp_path / "ours", target, "mapped")
    with pytest.raises(OptionError, match="whose output layers have a bias, which the format lacks"):
        exported(path, target, "medusa", tmp_path / "exported")
    tied = heads_folder(tmp_path / "tied", target, "tied")  # the target adds its bias itself
    exported(tied, target, "medusa", tmp_path / "exported")
    hidden = torch.randn(3, 32)
    assert torch.equal(load_heads(str(tmp_path / "exported"), target)[0](hidden), load_heads(tied, target)[0](hidden))
