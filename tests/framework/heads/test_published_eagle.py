"""EAGLE-1 and EAGLE-3 from published folders: the published formula over rounds of ragged acceptance, wrong files."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from drafters.eagle import Eagle
from drafters.eagle_tree import EagleTree
from framework.conformance.test_doubles import PATTERNS, Dictated, Witness
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.heads.published_eagle import export_eagle3, export_eagle3_to_speculators, read_eagle, save_eagle
from framework.heads.speculators_format import speculators_eagle3
from framework.metrics.stopwatch import Stopwatch
from framework.models.forward_output import LayerHooks
from framework.training.target_states import states_and_features
from tests.support.published.eagle1 import random_eagle1, reference_states
from tests.support.published.eagle3 import random_eagle3, reference_logits

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [3, 4, 40]]
LAYERS = [0, 1, 2]
KINDS = {
    "eagle1": None,
    "eagle1 without bias": None,
    "eagle3": {},
    "eagle3 of the whole vocabulary": {"draft_vocab_size": 50},
    "eagle3, qwen3, residual normed": {"model_type": "qwen3", "norm_before_residual": True},
    "eagle3 of speculators": {},
}


EXPORTS = {"eagle3": export_eagle3, "speculators": export_eagle3_to_speculators}


def target_of(dtype=torch.float64):
    return tiny_target(hidden_size=16, intermediate_size=24, dtype=dtype)


def published(folder, kind):
    """Write a random drafter; returns its config and tensors in the original layout."""
    folder.mkdir(parents=True, exist_ok=True)
    if KINDS[kind] is None:
        config, tensors = random_eagle1(bias="without" not in kind)
    else:
        config, tensors = random_eagle3(**KINDS[kind])
        config["eagle_aux_hidden_state_layer_ids"] = LAYERS
    if "speculators" in kind:
        named = {"name": "x", "architectures": ["LlamaForCausalLM"], "layers": LAYERS, "speculative_tokens": 5}
        speculators_eagle3(config, tensors, **named).save(folder)
    else:
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors")
    return config, tensors


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_drafts_are_those_of_the_published_formula(tmp_path, kind):
    """Five steps deep, in rounds that accept another number in every row."""
    config, tensors = published(tmp_path, kind)
    target = target_of()
    drafter, model = Witness(Eagle(target, path=str(tmp_path), layer_numbers=None)), target.model.model
    engine = Engine(
        target=target,
        drafter=drafter,
        verifier=Dictated(PATTERNS["a different number in every row"]),
        gamma_policy=Fixed(gamma=5),
        sampling=Sampling(),
    )
    clock = Stopwatch(target.device)
    decoding = engine.begin(PROMPTS, stopping=Stopping(40), seeds=[0, 1, 2], detailed=False, stopwatch=clock)
    for _ in range(4):
        engine.round(decoding)
    for proposal in drafter.proposals:
        draft = proposal.draft
        for row, text in enumerate(proposal.committed):
            hidden, features = states_and_features(LayerHooks(model), model, torch.tensor([text[:-1]]), LAYERS)
            after, drafted = torch.tensor(text[1:]), draft.tokens[row, :-1]
            if KINDS[kind] is None:
                embeddings = model.get_input_embeddings().weight
                states = reference_states(config, tensors, embeddings, hidden[0], after, drafted)
                expected = model.get_output_embeddings()(states).softmax(-1)
            else:
                logits = reference_logits(config, tensors, features[0], after, drafted).softmax(-1)
                expected = logits.new_zeros(len(logits), 50)
                mapping = tensors.get("d2t", torch.zeros(50, dtype=torch.int64))
                expected[:, torch.arange(len(mapping)) + mapping] = logits
            q = draft.dense_probs(50)[row].double()
            torch.testing.assert_close(q, expected, rtol=0, atol=1e-5)  # rotary angles are float32


@pytest.mark.parametrize("kind", ["eagle1", "eagle3", "eagle3, qwen3, residual normed"])
@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_greedy_decoding_gives_the_targets_tokens(tmp_path, kind, is_tree):
    published(tmp_path, kind)
    target, sampling, path = target_of(torch.float32), Sampling(temperature=0), str(tmp_path)
    if is_tree:
        drafter = EagleTree(target, path=path, layer_numbers=None, depth=4, children=3, nodes=9)
    else:
        drafter = Eagle(target, path=path, layer_numbers=None)
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)
    plain, asked = Autoregressive(target=target, sampling=sampling), {"stopping": Stopping(20), "seeds": [0, 1, 2]}
    assert engine.generate(PROMPTS, **asked).tokens == plain.generate(PROMPTS, **asked).tokens


@pytest.mark.parametrize("kind", ["eagle1", "eagle3"])
def test_a_layer_comes_back_as_it_was_saved(tmp_path, kind):
    published(tmp_path / "one", kind)
    target = target_of(torch.float32)
    read = read_eagle(str(tmp_path / "one"), target)
    save_eagle(tmp_path / "two", read, target=target)
    again, first = (load_file(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    assert again.keys() == first.keys()
    assert all(torch.equal(again[name], first[name].to(again[name].dtype)) for name in first)
    back = read_eagle(str(tmp_path / "two"), target)
    assert back.hidden_layers == read.hidden_layers and back.config.rope_parameters == read.config.rope_parameters
    with pytest.raises(ValueError, match=r"^path is .*, made for the target with the fingerprint"):
        read_eagle(str(tmp_path / "two"), tiny_target(hidden_size=16, seed=1))


def drafts_of(path, target):
    """All drafts of a decoding with the drafter at a path: tokens and probabilities."""
    drafter = Witness(Eagle(target, path=path, layer_numbers=None))
    engine = Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=Sampling())
    engine.generate(PROMPTS, stopping=Stopping(9), seeds=[0, 1, 2])
    return [tensor for each in drafter.proposals for tensor in (each.draft.tokens, each.draft.dense_probs(50))]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("eagle3", "eagle3"), ("eagle3 of speculators", "eagle3"), ("eagle3 of the whole vocabulary", "eagle3"),
     ("eagle3", "speculators"), ("eagle3, qwen3, residual normed", "speculators"),
     ("eagle3 of the whole vocabulary", "speculators")],
)  # fmt: skip
def test_an_exported_layer_has_the_same_tensors_and_drafts(tmp_path, kind, name):
    config, _ = published(tmp_path / "one", kind)
    config.update(rope_scaling={"rope_type": "linear", "factor": 2.0})
    if "speculators" not in kind:
        (tmp_path / "one" / "config.json").write_text(json.dumps(config))
    target = target_of(torch.float32)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    export = EXPORTS[name](one, target, name="the target", layer_numbers=None)
    assert export.speculative_config == {"method": "eagle3", "num_speculative_tokens": 5}
    export.save(tmp_path / "two")
    before, after = read_eagle(one, target), read_eagle(two, target)
    assert after.config.rope_parameters == before.config.rope_parameters
    assert before.state_dict().keys() == after.state_dict().keys()
    assert all(torch.equal(tensor, after.state_dict()[key]) for key, tensor in before.state_dict().items())
    assert all(torch.equal(*both) for both in zip(drafts_of(one, target), drafts_of(two, target), strict=True))


def test_exports_do_not_follow_the_number_of_layers_in_their_config(tmp_path):
    """Layers numbered by their outputs come out as indices of hidden_states, whatever the config's place says."""
    config, _ = published(tmp_path / "one", "eagle3")
    (tmp_path / "one" / "config.json").write_text(json.dumps(config | {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}))
    for name, export in EXPORTS.items():
        export(str(tmp_path / "one"), target_of(), name="x", layer_numbers="outputs").save(tmp_path / name)
        assert read_eagle(str(tmp_path / name), target_of()).hidden_layers == (0, 1, 2)


def test_layers_that_a_format_lacks_are_not_exported(tmp_path):
    target = target_of(torch.float32)
    for kind, says in (
        ("eagle1", "path is .*, an EAGLE-1 layer; allowed: an EAGLE-3 layer"),
        ("eagle3, qwen3, residual normed", "whose norm_before_residual, q_norm, k_norm the format lacks"),
    ):
        published(tmp_path / kind, kind)
        with pytest.raises(ValueError, match=says):
            export_eagle3(str(tmp_path / kind), target, name="x", layer_numbers=None)


def test_rotary_positions_as_transformers_5_writes_them(tmp_path):
    config, _ = published(tmp_path, "eagle3")
    rotary = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_parameters": rotary}))
    assert read_eagle(str(tmp_path), target_of()).config.rope_parameters == rotary


@pytest.mark.parametrize(
    ("where", "layer_numbers", "expected"),
    [("top", None, (0, 1)), ("top", "outputs", (1, 2)), ("nested", None, (1, 2)), ("nested", "hidden_states", (0, 1))],
)
def test_layer_numbers_are_those_of_the_project_or_of_the_option(tmp_path, where, layer_numbers, expected):
    config, tensors = published(tmp_path, "eagle3")
    config.pop("eagle_aux_hidden_state_layer_ids")
    named = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    config |= named if where == "top" else {"eagle_config": named}
    tensors["fc.weight"] = tensors["fc.weight"][:, :32].contiguous()
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    assert read_eagle(str(tmp_path), target_of(), layer_numbers=layer_numbers).hidden_layers == expected


def test_wrong_files_are_explained_in_one_line(tmp_path):
    target = target_of(torch.float32)
    config, tensors = published(tmp_path, "eagle3")
    small = {"d2t": tensors["d2t"], "t2d": tensors["t2d"]}
    for change, tensor_change, message in (
        ({}, {"fc.weight": None}, "missing fc.weight"),
        ({}, {"fc.weight": torch.zeros(16, 96)}, r"misshapen fc.weight \[16, 96\] instead of \[16, 48\]"),
        ({}, {"surplus.weight": torch.zeros(1)}, "surplus surplus.weight"),
        ({"mask_token_id": 1}, {"mask_hidden": torch.zeros(1, 1, 48)}, "one for drafter=peagle or dart"),
        ({}, {"d2t": torch.zeros(20, dtype=torch.int64) + 40}, "d2t does not map to different tokens below 50"),
        ({}, dict.fromkeys(small), "draft vocabulary of 20 tokens, of 50 in all, has no d2t"),
        ({"layer_types": ["sliding_attention"]}, {}, "whose layer is sliding_attention, not full_attention"),
        ({"num_hidden_layers": 5}, {}, "of 5 layers, and only one is implemented"),
        ({"hidden_size": None}, {}, "config.json has hidden_size None, not a whole number >= 1"),
        ({"num_attention_heads": 0}, {}, "config.json has num_attention_heads 0, not a whole number >= 1"),
        ({"hidden_size": 17}, {}, "cannot be loaded: .*17"),
        ({"hidden_act": "sillu"}, {}, "cannot be loaded: KeyError: 'sillu'"),
        ({"rms_norm_eps": "x"}, {}, "cannot be loaded: .*rms_norm_eps"),
        ({"rope_theta": -1}, {}, "config.json has rope_theta -1, not a number > 0"),
        ({"norm_before_residual": "false"}, {}, "norm_before_residual 'false', not true or false"),
        ({"eagle_aux_hidden_state_layer_ids": "0,1,2"}, {}, "layers are '0,1,2', not a list of different whole"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}, {}, r"layers are \[1, 2, 2\], not a list of different whole"),
        ({}, {"0.0.linear.weight": torch.zeros(16, 16)}, "holds Medusa's heads, for drafter=medusa"),
        (
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
            {},
            r"hidden states 1, 2, 3 of a target; this one has 0 to 2",
        ),
    ):
        changed = {name: tensor for name, tensor in (tensors | tensor_change).items() if tensor is not None}
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match=message) as found:
            read_eagle(str(tmp_path), target)
        assert "\n" not in str(found.value) and str(found.value).startswith("path is ")
    with pytest.raises(ValueError, match=r"^layer_numbers is 'ids'; allowed: hidden_states, outputs, or null"):
        read_eagle(str(tmp_path), target, layer_numbers="ids")
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "outrider.json").write_text("{")
    with pytest.raises(ValueError, match=r"^path is .* cannot be loaded: "):
        read_eagle(str(tmp_path), target)
    (tmp_path / "config.json").unlink()
    (tmp_path / "eagle.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"^path is .*, which an earlier version trained, with a layer of another shape"
    ):
        read_eagle(str(tmp_path), target)
