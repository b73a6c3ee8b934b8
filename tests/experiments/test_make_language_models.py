"""A GPT-like pair from scratch, on any text."""

import json
import sys
from pathlib import Path

import pytest

from experiments import make_language_models
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.models.pretrained import load_draft_model, load_target
from framework.prompts.prompt_set import make_prompts
from framework.prompts.repeated import Repeated

SMALL = [
    "--config-name=language_models_small", "device=cpu", "threads=1", "compile=false", "vocabulary=300",
    "data.window=16", "target.steps=2", "target.batch=2", "target.config.n_embd=16", "target.config.n_layer=1",
    "drafters.drafter.steps=2", "drafters.drafter.batch=2", "drafters.drafter.config.n_embd=8",
    "prompts@train=plain_text", "prompts@held_out=plain_text",
]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    file = folder / "text.txt"
    file.write_text(text)
    places = [f"train.source.path={file}", f"held_out.source.path={file}"]
    places += [f"folder={folder / 'models'}", f"workdir={folder / 'work'}"]
    monkeypatch.setattr(sys, "argv", ["make_language_models", *SMALL, *places])
    make_language_models.main()


@pytest.mark.slow
def test_any_text_makes_a_pair_that_writes_by_itself(tmp_path, monkeypatch):
    run(monkeypatch, tmp_path, "to be or not to be\n" * 40)
    models = tmp_path / "models"
    target = load_target(path=str(models / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    drafter = load_draft_model(path=str(models / "drafter"), dtype="float32", attention="sdpa")(target)
    assert target.model.model.config.model_type == "gpt2" and target.model.context == drafter.context == 2048
    prompts = make_prompts(
        Repeated(text="<|endoftext|>", times=3), target.tokenizer, count=None, max_prompt_tokens=None, max_tokens=9,
        overflow="error", vocabulary_size=target.vocabulary_size, chat=False, system=None,
    ).prompts  # fmt: skip
    assert [prompt.tokens for prompt in prompts] == [(target.tokenizer.eos_token_id,)] * 3
    plain = Autoregressive(target=target, sampling=Sampling())
    written = plain.generate(
        [list(prompt.tokens) for prompt in prompts], stopping=Stopping(max_new_tokens=8), seeds=[0, 1, 2]
    )
    assert len({tuple(tokens) for tokens in written.tokens}) > 1
    facts = json.loads((models / "provenance.json").read_text())
    assert facts["target"]["steps"] == 2 and 0 < facts["drafter"]["held_out_alpha"] <= 1


def test_too_little_text_is_refused(tmp_path, monkeypatch, capfd):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, "to be")
    assert "allowed: more than data.window, 16" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"), [({"text": "", "times": 1}, "text"), ({"text": "a", "times": 0}, "times")]
)
def test_what_cannot_be_repeated_is_refused(options, message):
    with pytest.raises(ValueError, match=rf"^{message} "):
        Repeated(**options)
