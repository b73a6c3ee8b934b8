"""The doctor names planted mistakes in a layer trained on its prompts, and says when nothing or everything is wrong."""

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from experiments import doctor
from experiments.diagnosis.conventions import Setting
from experiments.diagnosis.positions import Positions, Text, agreement
from experiments.diagnosis.verdict import Findings, in_words
from framework.conformance.tiny_models import save_tiny
from framework.core.draft import Draft, SamplingScheme
from framework.models.pretrained import load_target
from framework.training.eagle_training import EagleTraining

ZOO = Path(doctor.__file__).parent / "zoo"
NUMBERS = "eagle_aux_hidden_state_layer_ids"
QKV = [f"midlayer.self_attn.{kind}_proj.weight" for kind in "qkv"]


def other_layers(config, tensors):
    config[NUMBERS] = [number - 1 for number in config[NUMBERS]]


def other_norm(config, tensors):
    config["norm_before_residual"] = not config.get("norm_before_residual")


def other_order(config, tensors):
    for name in QKV:
        tensors[name] = torch.cat(tensors[name].chunk(2, 1)[::-1], 1)


def ids_for_offsets(config, tensors):
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


def no_d2t(config, tensors):
    del tensors["d2t"]


def other_layers_and_norm(config, tensors):
    other_layers(config, tensors), other_norm(config, tensors)


def other_weights(config, tensors):
    for name in QKV:
        tensors[name] = -tensors[name]
    tensors["fc.weight"] = tensors["fc.weight"].flip(0)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0)


HIGHER = "layers one higher: 1, 2, 3, as layer_numbers=outputs"
MISTAKES = {
    other_layers: [f"trained for: {HIGHER}.", "To change: drafter.layer_numbers=outputs"],
    other_norm: ["trained for: norm_before_residual=true.", 'in config.json, "norm_before_residual": true'],
    other_order: [
        "trained for: embedding and state in the other order.",
        "other tensors midlayer.self_attn.k_proj.weight, ",
    ],
    ids_for_offsets: ["trained for: d2t as token ids, not offsets."],
    no_d2t: ["cannot be read", "trained for: d2t made from t2d."],
    other_layers_and_norm: ["trained for: ", HIGHER, "norm_before_residual=true", "drafter.layer_numbers=outputs"],
    other_weights: ["None of these settings fits"],
}


def plant(mistake, source, folder):
    """Copy a checkpoint with a mistake."""
    shutil.copytree(source, folder)
    config, tensors = json.loads((source / "config.json").read_text()), load_file(source / "model.safetensors")
    mistake(config, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a target, prompts, and a layer that knows the target's continuations of them by heart."""
    folder = tmp_path_factory.mktemp("trained")
    save_tiny(folder / "target", num_hidden_layers=4, tie_word_embeddings=False, seed=2)
    dice = random.Random(0)
    texts = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(12)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    target = load_target(path=str(folder / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    prompts = torch.tensor(target.tokenizer(texts)["input_ids"])
    settings = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = target.model.model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        training = EagleTraining(
            target, kind="eagle3", hidden_layers=[1, 2, 3], draft_vocabulary=30, train_output=True,
            norm_before_residual=True, depths=2, discount=0.8, feature_weight=0, token_weight=1, noise=0,
        )  # fmt: skip
    training.use_counts(written[:, 5:].flatten().bincount(minlength=50))
    adam = torch.optim.AdamW([each for each in training.module.parameters() if each.requires_grad], lr=1e-2)
    for _ in range(60):
        adam.zero_grad()
        training.loss(written).backward()
        adam.step()
    training.save(folder / "layer", written)
    return folder


def examined(monkeypatch, capsys, trained, layer, *arguments):
    """Output and exit code of the command."""
    given = [
        "drafter=eagle3", f"drafter.path={layer}", "target=pretrained", f"target.path={trained / 'target'}",
        "target.dtype=float32", "device=cpu", "prompts=jsonl", f"prompts.source.path={trained / 'prompts.jsonl'}",
        "max_new_tokens=16", "stop_at_eos=false", "max_gamma=2", "batch_size=12", *arguments,
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["doctor", *given])
    return run(capsys)


def run(capsys):
    try:
        doctor.main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code
    printed = capsys.readouterr()
    return printed.out + printed.err, code


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_named_with_its_remedy(trained, tmp_path, monkeypatch, capsys, mistake):
    monkeypatch.chdir(tmp_path)
    layer = plant(mistake, trained / "layer", tmp_path / "layer")
    text, code = examined(monkeypatch, capsys, trained, layer, "out=corrected")
    assert code == 1
    for words in MISTAKES[mistake]:
        assert words in text, text
    if mistake is no_d2t:
        original, corrected = (load_file(path / "model.safetensors") for path in (trained / "layer", Path("corrected")))
        assert original.keys() == corrected.keys()
        assert all(torch.equal(tensor, corrected[name]) for name, tensor in original.items())


@pytest.mark.slow
def test_a_right_setting_is_confirmed(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text, code = examined(monkeypatch, capsys, trained, trained / "layer")
    assert code == 0 and "The drafter fits as given" in text, text


def test_the_longest_right_path_of_a_tree_counts_and_intervals_treat_prompts_as_units():
    tokens, parents = torch.tensor([[4, 5, 6, 7, 8]]), torch.tensor([[-1, -1, 0, 1, 3]])
    draft = Draft(tokens, parents, torch.ones_like(tokens, dtype=torch.bool), SamplingScheme.ONE_HOT)
    assert agreement(draft, [5, 7, 8]) == (False, 3) and agreement(draft, [5, 7]) == (False, 2)
    assert agreement(draft, [4, 7]) == (True, 1) and agreement(draft, [9]) == (False, 0)

    def positions(*rows):
        return Positions([Text([0] * (len(row) + 1), [bool(each) for each in row], list(row)) for row in rows])

    better, worse = positions([1, 1], [1, 1], [1, 0]), positions([0, 0], [1, 1], [0, 0])
    found = better.ahead_of(worse, comparisons=1)
    # Differences of 2, 0 and 1, each at two positions: mean 1/2, deviation of the prompts' means 1/2, 2 degrees.
    assert found.mean == pytest.approx(0.5)
    assert found.high - found.mean == pytest.approx(4.302653 * 0.5 / 3**0.5)
    assert better.ahead_of(worse, comparisons=4).low < found.low


@pytest.mark.parametrize(
    ("right", "says"),
    [
        ([[True] * 4, [False] * 4], "No conclusion: the best setting, as given, is right at 50.0% of 8 positions"),
        (
            [[True, False, False, False]] * 8,
            "None of these settings fits: the best setting, as given, is right at 25.0%",
        ),
    ],
)
def test_too_few_positions_decide_nothing(right, says):
    texts = [Text([0, 1, 2, 3, 4], first, list(map(int, first))) for first in right]
    given = Setting(config={}, tensors={}, options={})
    assert in_words(Findings(given, {(): (given, Positions(texts))}, chosen=given))[0].startswith(says)


def part_of_the_vocabulary(config, tensors):
    """Keep three quarters of the draft vocabulary, and store their token ids as d2t."""
    number = len(tensors["lm_head.weight"])
    kept = torch.randperm(number, generator=torch.Generator().manual_seed(0))[: number * 3 // 4].sort().values
    tensors["lm_head.weight"] = tensors["lm_head.weight"][kept].clone()
    tensors["d2t"], config["draft_vocab_size"] = kept, len(kept)


@pytest.mark.slow
def test_a_mistake_in_the_embedded_layer_is_named(tmp_path, monkeypatch, capsys):
    """Greedy texts of fixed prompts are the same in every run."""
    monkeypatch.chdir(tmp_path)
    layer = plant(part_of_the_vocabulary, ZOO / "eagle3", tmp_path / "layer")
    size = ["prompts.count=24", "max_new_tokens=24", "batch_size=24"]
    monkeypatch.setattr(sys, "argv", ["doctor", "device=cpu", f"drafter.path={layer}", *size])
    text, code = run(capsys)
    assert code == 1 and "trained for: d2t as token ids, not offsets." in text, text


@pytest.mark.slow
def test_heads_trained_here_are_measured_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    size = ["prompts.count=3", "max_new_tokens=8"]
    monkeypatch.setattr(sys, "argv", ["doctor", "device=cpu", "drafter=medusa", *size])
    text, _ = run(capsys)
    assert "as given" in text and "config.json" not in text, text
