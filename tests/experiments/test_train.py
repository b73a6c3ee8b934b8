"""The command that trains drafters: what it learns, that a kill loses nothing, and what it says when it is wrong."""

import json
import re
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from experiments import train
from experiments.config.help_text import CONF
from experiments.config.resolvers import register_resolvers
from experiments.measurement.ranks import Ranks
from experiments.trainer import trainer, trainings
from experiments.trainer.trainer import Recipe, Trainer
from experiments.trainer.training_data import Samples, Windows, stream_of_samples, stream_of_texts
from experiments.trainer.trainings import read_trainings
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.heads.medusa_heads import OUTPUTS, load_heads
from framework.models.pretrained import load_target
from framework.prompts.prompt_source import Text
from framework.training.medusa_training import MedusaTraining
from tests.support.tiny_training import tiny_training

RECIPE = Recipe(steps=6, batch=2, window=16, learning_rate=1e-2, warmup=2, decay=0.5, optimizer="adamw",
                checkpoint_every=2, evaluate_every=3)  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    """Overrides that put a tiny target and texts in the place of the embedded ones."""
    return tiny_training(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def config(tiny) -> DictConfig:
    """The config of `train` for the tiny target; without a folder."""
    return composed(*tiny)


def composed(*arguments: str) -> DictConfig:
    register_resolvers()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", [*arguments])


def run(monkeypatch, capfd, *arguments: str, draws: bool = False) -> str:
    """Run the command without W&B, and without its picture, which takes longer than a tiny training."""
    monkeypatch.setattr(sys, "argv", ["train", "tracker=jsonl", *arguments])
    with monkeypatch.context() as patch:
        if not draws:
            patch.setattr(trainings, "draw_trainings", lambda *_: None)
        train.main()
    captured = capfd.readouterr()
    return captured.out + captured.err


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "heads.safetensors")


def target_path(tiny: list[str]) -> str:
    return next(entry for entry in tiny if entry.startswith("target.path=")).split("=")[1]


def target_of(tiny: list[str]):
    return load_target(path=target_path(tiny), dtype="float32", device="cpu", attention="sdpa", context=None)


@pytest.mark.slow
@pytest.mark.parametrize(("data", "prompt_tokens"), [("texts", 8), ("samples", 8), ("samples", "null")])
def test_a_killed_training_resumes_to_the_same_heads(tiny, tmp_path, monkeypatch, capfd, data, prompt_tokens):
    command = [*tiny, f"data={data}", "samples.count=40", "samples.batch=16", "samples.new_tokens=30",
               f"samples.prompt_tokens={prompt_tokens}",
               "prompts.max_prompt_tokens=8", "held_out.max_prompt_tokens=8", "prompts.source.split_on=line",
               "held_out.source.split_on=line", "held_out_windows=2"]  # fmt: skip
    out = run(monkeypatch, capfd, *command, f"folder={tmp_path / 'whole'}")
    assert "step 3: loss=" in out and ", head 1 top-1=" in out and "resuming at" not in out
    assert (
        f"target.path={target_path(tiny)} target.dtype=float32 drafter=medusa drafter.path={tmp_path / 'whole'}" in out
    )

    loss, calls = MedusaTraining.loss, []

    def killed(self, tokens):
        calls.append(1)
        if len(calls) == 4:  # in step 3, the first call being a trial
            raise KeyboardInterrupt
        return loss(self, tokens)

    monkeypatch.setattr(MedusaTraining, "loss", killed)
    with pytest.raises(SystemExit):
        run(monkeypatch, capfd, *command, f"folder={tmp_path / 'killed'}")
    assert "the same command resumes" in capfd.readouterr().err
    assert not (tmp_path / "killed" / "heads.safetensors").exists()
    assert "resuming at step 2 of 6" in run(monkeypatch, capfd, *command, f"folder={tmp_path / 'killed'}")
    assert len(calls) == 4 + 1 + 4  # a trial, and steps 3 to 6
    for name, tensor in weights(tmp_path / "whole").items():
        assert torch.equal(tensor, weights(tmp_path / "killed")[name]), name
    whole, again = (json.loads((tmp_path / name / "heads.json").read_text()) for name in ("whole", "killed"))
    assert whole == again


@pytest.mark.slow
def test_more_steps_are_added_and_another_recipe_is_refused(tiny, config, tmp_path):
    def begun(*changes: str) -> dict[str, Any] | None:
        cfg = OmegaConf.merge(config, OmegaConf.from_dotlist([*changes, f"folder={tmp_path}"]))
        return train.train(cfg, "medusa", tmp_path, Ranks())

    begun()
    assert begun("training.steps=8")["steps"] == 8
    samples = set((tmp_path / "samples").iterdir())
    other_text = next(entry for entry in tiny if "held_out.txt" in entry).replace("held_out.", "prompts.", 1)
    for change in ("training.batch=3", "seed=1", "training.trainable.num_heads=2", "data=samples", "training.steps=7",
                   other_text):  # fmt: skip
        with pytest.raises(ValueError, match="give another folder") as refused:
            begun("training.steps=8", change)
        assert ("checkpoint.pt holds 8 steps" in str(refused.value)) == (change == "training.steps=7")
        assert set((tmp_path / "samples").iterdir()) == samples  # nothing was written before


@pytest.mark.parametrize("content", ["torn", "other", "text"])
def test_what_is_no_checkpoint_is_named(tmp_path, content):
    file = tmp_path / "checkpoint.pt"
    torch.save({"weights": torch.zeros(100)}, file)
    if content != "other":
        file.write_bytes(file.read_bytes()[:300] if content == "torn" else b"not a checkpoint")
    training = MedusaTraining(tiny_target(), num_heads=2, output="tied", discount=0.8, ranks=5)
    with pytest.raises(
        OSError, match=r"checkpoint\.pt is not a whole checkpoint .*; give another folder, or delete the"
    ):
        Trainer(training, RECIPE, file=file, made_of={})


@pytest.mark.slow
def test_the_folder_says_what_it_is_and_where_it_comes_from(tiny, tmp_path, monkeypatch, capfd):
    run(monkeypatch, capfd, *tiny, f"folder={tmp_path}")
    target = target_of(tiny)
    heads, accuracies = load_heads(str(tmp_path), target)
    assert heads.num_heads == 4 and [len(ranks) for ranks in accuracies] == [10] * 4
    facts = json.loads((tmp_path / "provenance.json").read_text())
    assert facts["drafter"] == "medusa" and facts["target_fingerprint"] == target.fingerprint
    assert facts["steps"] == 6 and facts["tokens"] == 6 * 2 * 24 and facts["text"]["fingerprint"]
    assert facts["versions"]["torch"] and facts["command"].endswith(f"folder={tmp_path}")
    assert [entry["step"] for entry in facts["history"]] == [3, 6]
    assert all(1 <= entry["tau"] <= 5 and 0 <= entry["alpha/position/1"] <= 1 for entry in facts["history"])
    assert facts["config"]["training"]["trainable"]["num_heads"] == 4
    for head, by_rank in enumerate(accuracies, start=1):
        assert facts["held_out"][f"head {head} top-1"] == by_rank[0]
        assert facts["held_out"][f"head {head} top-10"] == pytest.approx(sum(by_rank))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["data=dreams"], "data is 'dreams'; allowed: texts, conversations, samples"),
        (["held_out_windows=0"], "held_out_windows is 0"),
        (["training.steps=0"], "training.steps is 0"),
        (["training.learning_rate=-1"], "training.learning_rate is -1"),
        (["training.decay=2"], "training.decay is 2"),
        (["training.optimizer=sgd"], "training.optimizer is 'sgd'"),
        (["training.decay=much"], "training.decay is 'much'"),
        (["training.window=1000"], "training.window is 1000"),
        (["training.window=1"], "training.window is 1"),
        (["threads=0"], "threads is 0; allowed: a whole number from 1"),
        (["decoding_prompts=-1"], "decoding_prompts is -1; allowed: a whole number from 0"),
        (["held_out_windows=1000000"], "held_out_windows is 1000000; allowed: a whole number from 1 to 10000"),
        (["held_out.count=0"], "held_out.count is 0"),
        (["samples.new_tokens=5000"], "samples.new_tokens 5000; allowed: together at most the target's context, 128"),
        (["samples.prompt_tokens=120", "samples.new_tokens=9"], "samples.prompt_tokens is 120"),
        (["samples.temperatures=1"], "samples.temperatures is 1; allowed: a list of numbers"),
        (
            ["data=samples", "samples.count=1", "samples.new_tokens=5", "samples.prompt_tokens=8"],
            "samples.count is 1 and samples.new_tokens 5, not enough for one window; allowed: at least training.window",
        ),
        (["training.trainable.num_heads=0"], "training.trainable.num_heads is 0"),
        (["training.trainable.num_heads=1.5"], "training.trainable.num_heads is 1.5; allowed: a whole number"),
        (["training.trainable.num_heads=30"], "training.window is 24"),
        (["data=samples", "samples.count=0"], "samples.count is 0"),
        (["held_out.source.path=nowhere"], "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_clear_line(config, tmp_path, wrong, says):
    """The command prints the error's message, as the next test shows."""
    cfg = OmegaConf.merge(config, OmegaConf.from_dotlist([*wrong, f"folder={tmp_path}"]))
    with pytest.raises((ValueError, OSError), match=re.escape(says)):
        train.train(cfg, "medusa", tmp_path, Ranks())
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("training.window=1000", "training.window is 1000"),
        ("held_out.source.path=nowhere", "nowhere"),
        ("training=eagle", "drafter is 'medusa', which does not load what training=eagle trains; allowed: eagle, "),
    ],
)
def test_the_command_prints_no_traceback(tiny, tmp_path, monkeypatch, capfd, wrong, says):
    with pytest.raises(SystemExit):
        run(monkeypatch, capfd, *tiny, wrong, f"folder={tmp_path}")
    shown = capfd.readouterr().err
    assert says in shown and "Traceback" not in shown, shown
    assert not (tmp_path / "samples").exists()


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        (
            "ngram",
            "allowed: dart, eagle, eagle3, medusa, small_transformer, or training=medusa_joint, training=stop_head",
        ),
        ("layer_skip", "(python -m experiments.search_layers finds its layers); allowed"),
        ("transformer_tree", "(it drafts with the model that drafter=small_transformer trains); allowed"),
    ],
)
def test_drafters_that_are_not_trained_are_told(drafter, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        train.check_before_loading(composed(f"drafter={drafter}"), drafter)


def test_a_trained_drafter_without_its_checkpoint_is_not_overwritten(tiny, tmp_path, monkeypatch, capfd):
    heads = tmp_path / "heads.safetensors"
    heads.write_bytes(b"heads")
    with pytest.raises(SystemExit):
        run(monkeypatch, capfd, *tiny, f"folder={tmp_path}")
    assert "which holds heads.safetensors; allowed: a new or empty folder" in capfd.readouterr().err
    assert heads.read_bytes() == b"heads"


@pytest.mark.slow
def test_a_training_lies_where_hydra_is_told_to_put_it(tiny, tmp_path, monkeypatch, capfd):
    out = run(
        monkeypatch, capfd, *tiny, f"folder={tmp_path / 'samples'}", f"hydra.run.dir={tmp_path / 'run'}", draws=True
    )
    assert f"drafter.path={tmp_path / 'run'}" in out
    assert {"heads.safetensors", "trainings.md", "trainings.png"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }


@pytest.mark.slow
def test_the_distillation_study_leaves_comparable_trainings(tiny, tmp_path, monkeypatch, capfd):
    small = [entry for entry in tiny if "window" not in entry]
    monkeypatch.setattr(sys, "argv", [
        "train", "-m", *small, "study=distillation", f"folder={tmp_path / 'samples'}", f"hydra.sweep.dir={tmp_path}",
        "training.window=24", "held_out_windows=8",
        "samples.count=6", "samples.batch=4", "samples.new_tokens=20", "samples.prompt_tokens=8",
        "training.trainable.config.hidden_size=16", "training.trainable.config.intermediate_size=16",
        "training.trainable.loss=cross_entropy,reverse_kl", "decoding_prompts=0",
    ])  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(trainings, "draw_trainings", lambda *_: None)
        train.main()
    out = capfd.readouterr().out
    facts = read_trainings(tmp_path)
    trainings.draw_trainings(facts, tmp_path / "trainings.png")
    losses = ("cross_entropy", "reverse_kl")
    assert set(facts) == {f"{loss}-{data}" for loss in losses for data in ("texts", "samples")}
    assert len({one["held_out"]["fingerprint"] for one in facts.values()}) == 1  # or their alphas could not be compared
    assert len({one["text"]["fingerprint"] for one in facts.values()}) == 2
    for name, one in facts.items():
        assert [entry["step"] for entry in one["history"]] == [3, 6]
        assert 0 < one["held_out"]["alpha(T=1)"] < 1 and name in (tmp_path / "trainings.md").read_text()
        assert AutoModelForCausalLM.from_pretrained(tmp_path / name).config.hidden_size == 16
    # In the command that sends its run, in Next, and in the table of all.
    assert out.count("cross_entropy-texts") == 1 + 1 + 1 and "Writing model" not in out
    assert f"drafter.model.path={tmp_path}" in out.replace("\n", "") and (tmp_path / "trainings.png").stat().st_size > 0


# Learning


class Pattern:
    """Text in which every token follows from the two before it, so that there is something to learn."""

    def texts(self):
        yield Text("pattern", "any", "".join("abcab cabde"[i % 11] for i in range(3000)))


def test_training_beats_untrained_heads_on_held_out_text(tmp_path):
    """Chance is one token in 50. What the heads can reach is the text's period, which random weights still carry."""
    target = tiny_target()
    stream = stream_of_texts(Pattern(), target)
    recipe = Recipe(**asdict(RECIPE) | {"steps": 60, "window": 32, "evaluate_every": 60})
    text, held_out = Windows(stream[:2000], 32, text="x"), Windows(stream[2000:], 32, text="x").sample_evenly(8)
    training = MedusaTraining(target, num_heads=2, output="tied", discount=0.8, ranks=5)
    before, loss_before = training.accuracies(held_out), training.loss(held_out).item()
    trainer = Trainer(training, recipe, file=tmp_path / "x.pt", made_of={})
    trainer.run(lambda step: text.drawn(4, seed=0, step=step), held_out)
    assert [entry["step"] for entry in trainer.history] == [10, 20, 30, 40, 50, 60]
    assert [set(entry) == {"step", "loss"} for entry in trainer.history] == [True] * 5 + [False]  # then evaluated
    after, loss_after = training.accuracies(held_out), training.loss(held_out).item()
    assert loss_after < loss_before / 2
    for head in range(2):
        assert after[head][0] > before[head][0] + 0.2


def test_heads_are_trained_on_for_another_state_of_their_target(tmp_path):
    """Untrained heads agree with one another; these were moved, so that what they begin with shows."""
    earlier, later = tiny_target(seed=0), tiny_target(seed=1)
    settings = {"output": "tied", "discount": 0.8, "ranks": 5}
    held_out = Windows(stream_of_texts(Pattern(), earlier), 16, text="x").sample_evenly(2)
    first = MedusaTraining(earlier, num_heads=2, **settings)
    torch.manual_seed(0)
    for parameter in first.module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    first.save(tmp_path, held_out)
    with pytest.raises(ValueError, match="made for the target with the fingerprint"):
        load_heads(str(tmp_path), later)
    second = MedusaTraining(later, num_heads=2, path=str(tmp_path), **settings)
    torch.testing.assert_close(second.module.weights, first.module.weights, atol=2e-3, rtol=0)  # kept in bfloat16
    second.loss(held_out).backward()
    assert all(parameter.grad is not None for parameter in second.module.parameters())
    with pytest.raises(ValueError, match=r"^path is .*2 heads with output tied"):
        MedusaTraining(later, num_heads=3, path=str(tmp_path), **settings)
    with pytest.raises(OSError, match=r"^path is .*nowhere"):
        MedusaTraining(later, num_heads=2, path=str(tmp_path / "nowhere"), **settings)


def test_the_target_is_left_as_it_was(tmp_path):
    target = tiny_target()
    before = {name: tensor.clone() for name, tensor in target.model.model.state_dict().items()}
    text = Windows(stream_of_texts(Pattern(), target), 16, text="x")
    for output in OUTPUTS:
        training = MedusaTraining(target, num_heads=2, output=output, discount=0.8, ranks=5)
        Trainer(training, RECIPE, file=tmp_path / f"{output}.pt", made_of={}).run(
            lambda step: text.drawn(2, seed=0, step=step),
            text.sample_evenly(2),
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.model.model.state_dict().items())
    assert all(parameter.grad is None for parameter in target.model.model.parameters())


def test_rates_rise_stay_and_fall():
    recipe = Recipe(**asdict(RECIPE) | {"steps": 100, "warmup": 10, "decay": 0.5, "learning_rate": 1.0})
    rates = [recipe.rate_at(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * (i + 1) for i in range(10)])
    assert rates[10:51] == [1.0] * 41 and rates[75] == pytest.approx(0.5) and rates[99] == pytest.approx(0.02)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_trained_parameter_has_one_optimizer(kind):
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 4), "inner": torch.nn.Linear(4, 4)})
    frozen = module["inner"].bias.requires_grad_(False)
    optimizers = trainer.make_optimizers(module, kind)
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in module.parameters() if p is not frozen} and len(held) == 2
    kinds = [torch.optim.Muon, torch.optim.AdamW] if kind == "muon" else [torch.optim.AdamW]
    assert all(isinstance(optimizer, kind) for optimizer, kind in zip(optimizers, kinds, strict=True))


# Text


def test_a_stream_is_every_text_with_its_end():
    class Two:
        def texts(self):
            yield Text("one", "any", "ab")
            yield Text("two", "any", "c")

    target = tiny_target()
    ids = target.tokenizer("abc")["input_ids"]
    assert stream_of_texts(Two(), target).tolist() == [*ids[:2], 0, ids[2], 0]


def test_windows_are_stretches_of_the_stream():
    windows = Windows(np.arange(100), 10, text="x")
    for batch in (windows.drawn(50, seed=0, step=3), windows.sample_evenly(7)):
        assert torch.equal(batch - batch[:, :1], torch.arange(10).expand(len(batch), -1))
        assert batch.min() >= 0 and batch.max() <= 99
    assert torch.equal(windows.drawn(5, seed=1, step=2), windows.drawn(5, seed=1, step=2))
    assert not torch.equal(windows.drawn(5, seed=1, step=2), windows.drawn(5, seed=1, step=3))
    assert windows.sample_evenly(3)[:, 0].tolist() == [0, 45, 90] and len(windows.sample_evenly(1000)) == 10
    with pytest.raises(ValueError, match=r"held_out\.source gives 100 tokens; allowed: at least training\.window, 101"):
        Windows(np.arange(100), 101, text="held_out.source")


def test_samples_are_the_targets_own_text_and_are_written_once(tmp_path, monkeypatch):
    target = tiny_target()
    prompts = [[3, 4], [5]]
    samples = Samples(count=5, prompt_tokens=None, new_tokens=6, temperatures=[1.0, 0], batch=2)
    stream = stream_of_samples(prompts, target, samples, folder=tmp_path)
    stopping, expected = Stopping(max_new_tokens=6, eos_ids=(0,)), []
    for number in range(5):
        prompt, temperature = prompts[number % 2], [1.0, 1.0, 0, 0, 1.0][number]
        plain = Autoregressive(target=target, sampling=Sampling(temperature=temperature))
        new = plain.generate([prompt], stopping=stopping, seeds=[number]).tokens[0]
        expected += prompt + new + ([] if new[-1] == 0 else [0])
    assert stream.tolist() == expected
    file = next(tmp_path.glob("*.json"))
    for damaged in (b"[[3, 4", b"{}", b"[1, 2]", b"\xff", file.read_bytes().replace(b"[[", b"[[9, ")):
        file.write_bytes(damaged)  # it is written anew
        assert stream_of_samples(prompts, target, samples, folder=tmp_path).tolist() == expected
    monkeypatch.setattr(Autoregressive, "generate", None)  # all is on the disk
    assert stream_of_samples(prompts, target, samples, folder=tmp_path).tolist() == expected
