"""Stored states: training from them equals training online; a kill loses one shard; other folders are refused."""

import json
import shutil
import sys
from collections import namedtuple
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from experiments import extract_states, train
from experiments.extract_states import extract, write_shards
from experiments.trainer.training_data import Windows
from framework.conformance.tiny_models import tiny_target
from framework.training.eagle_training import EagleTraining
from framework.training.medusa_training import MedusaTraining
from framework.training.stored_states import StatesIndex, StoredStates
from framework.training.target_states import TargetStates
from tests.support.tiny_training import tiny_text, tiny_training

LAYERS = (1, 2)
EAGLE = {"kind": "eagle3", "hidden_layers": list(LAYERS), "draft_vocabulary": None, "train_output": True,
         "norm_before_residual": True, "depths": 2, "discount": 0.8, "feature_weight": 0, "token_weight": 1.0,
         "noise": 0.0}  # fmt: skip
STREAM = np.random.default_rng(0).integers(0, 50, 12 * 7 + 5)
TEXT = Windows(STREAM, 12, text="x", stride=12)


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def index_for(target, **changed) -> StatesIndex:
    index = StatesIndex(
        target=target.fingerprint, text=TEXT.fingerprint(), window=12, windows=len(TEXT), layers=LAYERS,
        dtype="float32", windows_per_shard=3,
    )  # fmt: skip
    return replace(index, **changed)


def store(folder, target, states=None, **changed) -> StatesIndex:
    index = index_for(target, **changed)
    index.write(folder)
    states = states or TargetStates(target, index.layers)
    write_shards(folder, index, TEXT, states, batch=2, device=target.device)
    return index


def trainings(target):
    """An eagle3, which reads layers, and Medusa heads, which read the last states alone."""
    for make in (
        lambda: EagleTraining(target, **EAGLE),
        lambda: MedusaTraining(target, num_heads=2, output="mapped", discount=0.8, ranks=2),
    ):
        torch.manual_seed(0)
        yield make()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 1e-2)])
def test_training_from_stored_states_has_the_losses_of_training_online(tmp_path, target, dtype, tolerance, monkeypatch):
    assert len(TEXT) == 7
    store(tmp_path, target, dtype=dtype)
    stored = StoredStates(tmp_path)
    for online, offline in zip(trainings(target), trainings(target), strict=True):
        offline.states.read_from(stored)
        optimizers = [torch.optim.SGD(each.module.parameters(), lr=0.1) for each in (online, offline)]
        for step in range(3):
            tokens, losses = TEXT.drawn(4, seed=0, step=step), []
            for training, optimizer in zip((online, offline), optimizers, strict=True):
                with monkeypatch.context() as patch:
                    if training is offline:
                        patch.setattr(target.model.model, "forward", None)  # no pass
                    losses.append(training.loss(tokens))
                optimizer.zero_grad()
                losses[-1].backward()
                optimizer.step()
            assert losses[1].item() == pytest.approx(losses[0].item(), rel=tolerance)
            assert (losses[1] != losses[0]) or dtype == "float32"
        held_out = Windows(STREAM[1:], 12, text="x").sample_evenly(2)  # not stored
        assert offline.evaluate(held_out) == pytest.approx(online.evaluate(held_out), abs=0.2)


def test_an_interrupted_shard_is_made_again_and_the_files_are_equal(tmp_path, target):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    store(whole, target)

    class Killed(TargetStates):
        passes = 0

        def __call__(self, tokens):
            Killed.passes += 1
            if Killed.passes == 4:  # in the second shard, of two passes each
                raise KeyboardInterrupt
            return super().__call__(tokens)

    with pytest.raises(KeyboardInterrupt):
        store(killed, target, Killed(target, LAYERS))
    assert len(list(killed.glob("*.safetensors"))) == 1
    with pytest.raises(FileNotFoundError, match=r"^states is .*, which lacks 2 of 3 shards; allowed: a complete"):
        StoredStates(killed)
    (killed / "states-00001-of-00003.new").write_bytes(b"begun")
    store(killed, target, Killed(target, LAYERS))
    assert Killed.passes == 4 + 3  # the first shard is kept; 2 passes, and one for the last window
    files = sorted(path.name for path in whole.iterdir())
    assert files == sorted(path.name for path in killed.iterdir()) and len(files) == 4
    assert all((whole / name).read_bytes() == (killed / name).read_bytes() for name in files)


def test_states_of_something_else_are_refused(tmp_path, target):
    index = store(tmp_path, target)
    stored, made = StoredStates(tmp_path), "^states is .*, made for "
    fitting = {"target": target.fingerprint, "layers": LAYERS, "window": 12}
    stored.check(**fitting)
    stored.check(**fitting | {"layers": (2,)})
    for changed, says in (
        ({"target": "other"}, "the target with the fingerprint .*, not other; allowed"),
        ({"layers": (0, 2)}, r"layers \[1, 2\], not \[0, 2\]"),
        ({"window": 13}, "windows of a length of 12, not 13"),
    ):
        with pytest.raises(ValueError, match=made + says):
            stored.check(**fitting | changed)
    with pytest.raises(ValueError, match=made + "the text with the hash .*, not other"):
        stored.check_text("other")
    with pytest.raises(
        ValueError, match=r"^folder is .*, which holds states with dtype float32, not bfloat16; allowed"
    ):
        extract_states.check_folder(tmp_path, replace(index, dtype="bfloat16"))
    shard = index.file(tmp_path, 1)
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(OSError, match=r"^states is .*, which holds a damaged shard"):
        StoredStates(tmp_path)
    (tmp_path / "states.json").write_text("{}")
    with pytest.raises(OSError, match=r"^states is .*, whose states\.json is damaged"):
        StoredStates(tmp_path)
    with pytest.raises(OSError, match=r"^states is .*, without states\.json"):
        StoredStates(tmp_path / "nowhere")


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"^extract_states was started as several processes; allowed: one"):
        extract(OmegaConf.create(), "eagle3", tmp_path)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_size_is_told_beforehand_and_a_small_disk_is_refused(tmp_path, target, dtype, monkeypatch, capsys):
    index, states = index_for(target, dtype=dtype), TargetStates(target, LAYERS)
    of_one = states(TEXT.at([0]))
    told = index.num_bytes(*of_one, len(TEXT))
    extract_states.check_space(tmp_path / "later", index, *of_one)
    assert f"7 windows of 12 tokens, {told / 1e9:.3g} GB in 3 files" in capsys.readouterr().out
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(told - 1))
    with pytest.raises(ValueError, match=r"^folder is .* GB are free, and the states take .*; allowed: a disk with"):
        extract_states.check_space(tmp_path, index, *of_one)
    store(tmp_path, target, dtype=dtype)
    written = sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert 0 <= written - told < 3 * 600  # headers
    extract_states.check_space(tmp_path, index, *of_one)  # nothing is missing


@pytest.fixture(scope="module")
def extracted(tmp_path_factory) -> tuple[list[str], list[str]]:
    """Arguments common to both commands, and the folder of states as an argument of train; `extract_states` has run."""
    folder = tmp_path_factory.mktemp("extracted")
    common = [*tiny_text(folder), "threads=1", "training.window=24", "drafter=medusa"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(sys, "argv", ["extract_states", *common, f"folder={folder / 'states'}", "windows_per_shard=16"])
        extract_states.main()
    states = [f"states={folder / 'states'}"]
    assert printed.getvalue().rstrip().endswith(" ".join(["experiments.train", *common, *states]))
    return common, states


@pytest.mark.slow
def test_the_command_leaves_whole_states(extracted):
    (states,) = extracted[1]
    stored = StoredStates(Path(states.removeprefix("states=")))
    assert stored.index.layers == () and stored.index.dtype == "bfloat16" and len(stored.index.shards) > 1


@pytest.mark.slow
def test_train_reads_what_the_command_has_stored(extracted, tmp_path, tmp_path_factory, monkeypatch, capfd):
    common, states = extracted
    path = tmp_path_factory.mktemp("training")
    training = [*tiny_training(path), *common, f"folder={tmp_path}", "training.evaluate_every=1", "training.steps=3",
                "held_out_windows=1", "decoding_prompts=0"]  # fmt: skip

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["train", *training, *arguments])
        train.main()

    run(*states)
    facts = json.loads((tmp_path / "provenance.json").read_text())
    assert [entry["step"] for entry in facts["history"]] == [1, 2, 3]
    assert not (tmp_path / "samples").exists()  # what the target says is kept beside the states
    other = path / "held_out.txt"
    for wrong, says in (
        (["states=null"], "checkpoint.pt was begun with states 'bfloat16', not None"),
        ([*states, f"prompts.source.path={other}", f"folder={tmp_path / 'x'}"], "made for the text with the hash"),
        ([*states, "training.window=20"], "made for windows of a length of 24, not 20"),
        ([*states, "drafter=small_transformer"], "allowed: null for small_transformer, whose training needs more than"),
    ):
        with pytest.raises(SystemExit):
            run(*wrong)
        shown = capfd.readouterr().err
        assert says in shown and "Traceback" not in shown
