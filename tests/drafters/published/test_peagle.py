"""P-EAGLE: published folders, the published formula over rounds of ragged acceptance, wrong files."""

import json

import pytest
import torch
from safetensors.torch import save_file

from drafters.published.peagle import Peagle
from framework.conformance.test_doubles import PATTERNS, Dictated, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.heads.published_eagle import export_peagle_to_speculators, read_peagle
from framework.heads.speculators_format import speculators_eagle3
from framework.metrics.stopwatch import Stopwatch
from framework.models.forward_output import LayerHooks
from framework.training.target_states import states_and_features
from tests.support.published.eagle3 import random_eagle3, reference_logits

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4, 40]]
LAYERS = [0, 1, 2]
MASK = 49
LAYOUTS = {
    "speculators": {},
    "speculators, qwen3": {"model_type": "qwen3", "norm_before_residual": True},
    "original": {},
}


def target_of(dtype=torch.float64):
    return tiny_target(hidden_size=16, intermediate_size=24, dtype=dtype)


def published(folder, layout):
    """Write a random drafter; returns its config and tensors in the original layout, with the names of speculators."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = random_eagle3(mask_token_id=MASK, **LAYOUTS[layout])
    if layout == "original":
        named = {name: value for name, value in config.items() if name != "mask_token_id"}
        named |= {"ptd_token_id": MASK, "eagle_aux_hidden_state_layer_ids": LAYERS}
        (folder / "config.json").write_text(json.dumps(named))
        save_file(tensors | {"mask_hidden": tensors["mask_hidden"][0]}, folder / "model.safetensors")
    else:
        named = {"name": "x", "architectures": ["LlamaForCausalLM"], "layers": LAYERS, "speculative_tokens": 5}
        speculators_eagle3(config, tensors, **named).save(folder)
    return config, tensors


def engine_of(target, drafter, gamma, temperature=1.0, **more):
    sampling = Sampling(temperature=temperature)
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=gamma), sampling=sampling, **more)


@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_drafts_are_those_of_the_published_formula(tmp_path, layout):
    """Five tokens in one pass, in rounds that accept another number in every row."""
    config, tensors = published(tmp_path, layout)
    target = target_of()
    drafter, model = Witness(Peagle(target, path=str(tmp_path), layer_numbers=None)), target.model.model
    calls = []
    drafter.models[0].register_forward_hook(lambda *_: calls.append(1))
    engine = engine_of(target, drafter, 5, verifier=Dictated(PATTERNS["a different number in every row"]))
    clock = Stopwatch(target.device)
    decoding = engine.begin(PROMPTS, stopping=Stopping(40), seeds=[0, 1, 2], detailed=False, stopwatch=clock)
    for _ in range(5):
        engine.round(decoding)
    assert len(calls) == 1 + len(drafter.proposals) == 6, "one pass over the prompts, and one per draft"
    kept = torch.arange(20) + tensors["d2t"]
    for proposal in drafter.proposals:
        for row, text in enumerate(proposal.committed):
            _, features = states_and_features(LayerHooks(model), model, torch.tensor([text[:-1]]), LAYERS)
            masks = torch.full((proposal.draft.num_nodes - 1,), MASK)
            logits = reference_logits(config, tensors, features[0], torch.tensor(text[1:]), masks)
            expected = logits.new_zeros(len(logits), 50)
            expected[:, kept] = logits.softmax(-1)
            q = proposal.draft.dense_probs(50)[row].double()
            torch.testing.assert_close(q, expected, rtol=0, atol=1e-5)  # rotary angles are float32


def test_greedy_tokens_are_those_of_plain_decoding(tmp_path):
    published(tmp_path, "speculators")
    target, asked = target_of(torch.float32), {"stopping": Stopping(20), "seeds": [0, 1, 2]}
    drafter = Peagle(target, path=str(tmp_path), layer_numbers=None)
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0)).generate(PROMPTS, **asked)
    assert engine_of(target, drafter, 3, temperature=0).generate(PROMPTS, **asked).tokens == plain.tokens


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_exported_drafter_has_the_same_tensors_and_drafts(tmp_path, layout):
    target, (one, two) = target_of(torch.float32), (str(tmp_path / name) for name in ("one", "two"))
    published(tmp_path / "one", layout)
    export = export_peagle_to_speculators(one, target, name="the target", layer_numbers=None)
    method = {"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 5}
    assert export.speculative_config == method
    export.save(tmp_path / "two")
    before, after = (read_peagle(path, target).state_dict() for path in (one, two))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    drafts = []
    for path in (one, two):
        drafter = Witness(Peagle(target, path=path, layer_numbers=None))
        engine_of(target, drafter, 3).generate(PROMPTS, stopping=Stopping(9), seeds=[0, 1, 2])
        drafts.append([part for each in drafter.proposals for part in (each.draft.tokens, each.draft.probs)])
    assert all(torch.equal(*both) for both in zip(*drafts, strict=True))


def test_wrong_files_are_explained_in_one_line(tmp_path):
    target = target_of(torch.float32)
    config, tensors = published(tmp_path, "original")
    for change, tensor_change, message in (
        ({"ptd_token_id": None}, {}, "whose mask token None has no embedding among 50"),
        ({"ptd_token_id": 50}, {}, "whose mask token 50 has no embedding among 50"),
        ({}, {"mask_hidden": None}, "without mask_hidden: another kind of EAGLE, which drafter=eagle3 reads"),
        ({}, {"mask_hidden": torch.zeros(1, 16)}, r"misshapen mask_hidden \[1, 1, 16\] instead of \[1, 1, 48\]"),
    ):
        named = {"ptd_token_id": MASK, "mask_token_id": None, "eagle_aux_hidden_state_layer_ids": LAYERS}
        changed = {name: tensor for name, tensor in (tensors | tensor_change).items() if tensor is not None}
        (tmp_path / "config.json").write_text(json.dumps(config | named | change))
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=message) as found:
            Peagle(target, path=str(tmp_path), layer_numbers=None)
        assert "\n" not in str(found.value) and str(found.value).startswith("path is ")
