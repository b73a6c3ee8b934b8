"""Training an encoder-decoder pair: a small recipe end to end, killed on the way and taken up again."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from experiments import make_pair
from experiments.config.resolvers import ZOO
from framework.models.pretrained import load_draft_model, load_target

SIZES = {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1}
SMALL = [
    "device=cpu", "threads=1", "vocabulary=300", "train.source.size=60", "held_out.source.size=12",
    "data.scored_pairs=3", "data.longest=200", "checkpoint_every=2", "evaluate_every=2",
    *(f"{model}.{key}={value}" for model in ("target", "drafters.drafter_small") for key, value in
      {"steps": 4, "batch": 4, **{f"config.{size}": value for size, value in SIZES.items()}}.items()),
    "~drafters.drafter_large", "~drafters.drafter_base",
]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> Path:
    places = [f"folder={folder / 'models'}", f"workdir={folder / 'work'}"]
    monkeypatch.setattr(sys, "argv", ["make_pair", *arguments, *SMALL, *places])
    make_pair.main()
    return folder / "models"


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_models(tmp_path, monkeypatch):
    whole = run(monkeypatch, tmp_path / "whole")
    steps, loss = [], make_pair.PairTraining.loss

    def killed(self, tokens):
        steps.append(1)
        if len(steps) == 7:  # in the middle of the drafter
            raise KeyboardInterrupt
        return loss(self, tokens)

    monkeypatch.setattr(make_pair.PairTraining, "loss", killed)
    with pytest.raises(BaseException):  # noqa: B017
        run(monkeypatch, tmp_path / "again")
    monkeypatch.setattr(make_pair.PairTraining, "loss", loss)
    again = run(monkeypatch, tmp_path / "again")
    for name in ("target", "drafter_small"):
        ours, theirs = (load_file(folder / name / "model.safetensors") for folder in (whole, again))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.slow
def test_the_finished_pair_loads_and_has_provenance(tmp_path, monkeypatch):
    models = run(monkeypatch, tmp_path)
    target = load_target(path=str(models / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    drafter = load_draft_model(path=str(models / "drafter_small"), dtype="float32", attention="sdpa")(target)
    assert target.model.text_start == drafter.text_start == [target.tokenizer.pad_token_id]
    facts = json.loads((models / "provenance.json").read_text())
    assert facts["pairs"] == 60 and facts["target"]["steps"] == 4
    assert {"quality/bleu", "quality/chrf"} <= facts["target"].keys()
    assert 0 < facts["drafter_small"]["alpha"] <= 1


@pytest.mark.slow
def test_a_training_begins_with_a_models_weights_and_tokenizer(tmp_path, monkeypatch):
    first = run(monkeypatch, tmp_path / "first") / "target"
    given = [f"tokenizer={first}", f"target.start={first}", "target.learning_rate=1e-12"]
    again = run(monkeypatch, tmp_path / "again", *given) / "target"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (first, again))
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.slow
def test_a_model_with_another_tokenizer_is_refused(tmp_path, monkeypatch, capfd):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, "target.start=${zoo:translation/target}")
    assert re.search(r"target\.start is \S+, which has another tokenizer; allowed: null, or", capfd.readouterr().err)


@pytest.mark.slow
def test_the_larger_pair_begins_with_the_embedded_one(tmp_path, monkeypatch):
    """Its target has one more layer here, and rates at which nothing moves."""
    sizes = {"d_model": 160, "num_heads": 4, "d_ff": 448, "num_decoder_layers": 5}
    quick = [each for each in SMALL if "config" not in each and "vocabulary" not in each]
    quick += [f"target.config.{size}={value}" for size, value in sizes.items()]
    quick += [f"{model}.learning_rate=1e-12" for model in ("target", "drafters.drafter_small")]
    monkeypatch.setattr(sys.modules[__name__], "SMALL", quick)
    models = run(monkeypatch, tmp_path, "--config-name=larger_translation")
    for name in ("target", "drafter_small"):
        ours, theirs = (load_file(each / name / "model.safetensors") for each in (models, ZOO / "translation"))
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert json.loads((models / "provenance.json").read_text())["target"]["nats"] < 0.2


@pytest.mark.slow
def test_multi30k_is_read_from_a_folder(tmp_path, monkeypatch):
    for name in ("train", "test_2016_flickr"):
        for language, words in (("en", "A dog and a cat.\n"), ("de", "Ein Hund und eine Katze.\n")):
            (tmp_path / f"{name}.{language}").write_text(words * 20)
    sources = [each for each in SMALL if "source" not in each]
    monkeypatch.setattr(sys.modules[__name__], "SMALL", sources)
    models = run(monkeypatch, tmp_path, "--config-name=multi30k", f"text={tmp_path}")
    assert json.loads((models / "provenance.json").read_text())["held_out_pairs"] == 20


def test_texts_without_references_are_refused(tmp_path, monkeypatch, capfd):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 9)
    monkeypatch.setattr(sys.modules[__name__], "SMALL", [each for each in SMALL if "source" not in each])
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, "prompts@train=plain_text", f"train.source.path={tmp_path / 'text.txt'}")
    assert "train.source gives text.txt, which has no reference" in capfd.readouterr().err
