"""Conversations as training text: the model's answers are learned, in windows that hold some."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments import train
from experiments.trainer.training_data import Windows, stream_of_conversations
from framework.conformance.tiny_models import save_tiny
from framework.models.pretrained import load_target
from framework.models.target import Target
from framework.prompts.jsonl import Jsonl
from framework.training.trainable import FILLER, complement
from tests.framework.prompts.test_chat import TEMPLATE, plain, tokenizer
from tests.support.tiny_training import tiny_training

SHAREGPT = [
    {"from": "system", "value": "be brief"},
    {"from": "human", "value": "hi"},
    {"from": "gpt", "value": "yes"},
    {"from": "human", "value": "and?"},
    {"from": "gpt", "value": "no"},
    {"from": "human", "value": "why?"},
]


def turns_of(*speakers: str) -> list[dict[str, str]]:
    return [{"role": speaker, "content": f"words of {speaker}"} for speaker in speakers]


def source(folder: Path, *conversations: object) -> Jsonl:
    file = folder / "conversations.jsonl"
    file.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in conversations))
    return Jsonl(path=str(file), field="turns", reference_field=None, category_field=None, tests=None)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    made = tokenizer(TEMPLATE.replace("<end>", "<end>\n"))
    made.eos_token = "<end>"
    made.save_pretrained(save_tiny(tmp_path / "target", vocabulary=261))
    return load_target(path=str(tmp_path / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)


def test_the_answers_alone_are_learned(tmp_path, target):
    stream = stream_of_conversations(source(tmp_path, SHAREGPT), target, system=None)
    end = target.tokenizer.convert_tokens_to_ids("<end>")
    assert stream[stream > FILLER].tolist() == [*plain("yes"), end, *plain("no"), end]
    read = target.tokenizer.decode(np.where(stream < FILLER, complement(stream), stream).tolist())
    assert read == "<s><user>hi<end>\n<assistant>yes<end>\n<user>and?<end>\n<assistant>no<end>\n"


@pytest.mark.parametrize(
    ("turns", "answers"),
    [
        (turns_of("user", "assistant"), 1),
        (turns_of("user", "assistant", "user"), 1),
        (turns_of("assistant", "user", "assistant"), 0),
        (turns_of("user", "user", "assistant"), 0),
        (turns_of("system", "user", "assistant"), 1),
        (turns_of("user", "tool", "assistant"), 0),
        ([*turns_of("user"), {"role": "assistant", "content": None}], 0),
        (["words of user", "more"], 0),
    ],
)
def test_answers_are_known_where_they_alternate(tmp_path, turns, answers):
    (text,) = source(tmp_path, turns).texts()
    assert text.text == "words of user" and len(text.answers) == answers


def test_texts_without_answers_are_counted(tmp_path, target, capsys):
    stream_of_conversations(source(tmp_path, SHAREGPT, turns_of("user"), turns_of("user")), target, system=None)
    assert "2 of 3 texts left out, without a reference or answers" in capsys.readouterr().out


def test_texts_without_answers_and_templates_that_change_all_words_are_refused(tmp_path, target):
    with pytest.raises(ValueError, match=r"^prompts\.source gives no text with an answer; allowed for data="):
        stream_of_conversations(source(tmp_path, ["hi"]), target, system=None)
    target.tokenizer.chat_template = "{% for turn in messages %}{{ turn.content | upper }}{% endfor %}"
    with pytest.raises(ValueError, match=r"chat template changes the words of every conversation; allowed"):
        stream_of_conversations(source(tmp_path, SHAREGPT), target, system=None)


def test_windows_without_a_learned_label_are_left_out():
    stream = np.arange(12)
    stream[:9] = complement(stream[:9])
    windows = Windows(stream, 4, text="x")
    assert [window[0] for window in windows.at(range(len(windows))).tolist()] == [
        complement(6),
        complement(7),
        complement(8),
    ]
    assert windows.counts(12).tolist() == [0] * 9 + [1] * 3
    assert (windows.sample_evenly(3)[:, 2:] > FILLER).any(1).all()
    assert (windows.drawn(20, seed=0, step=0)[:, 2:] > FILLER).any(1).all()
    with pytest.raises(ValueError, match=r"^x gives no window with a learned token"):
        Windows(np.full(12, complement(3)), 4, text="x")


@pytest.mark.slow
def test_train_learns_the_answers(tmp_path, target, monkeypatch, capsys):
    source(tmp_path, *[SHAREGPT] * 8)
    (tmp_path / "plain").mkdir()
    replaced = ("target", "prompts=", "prompts.")
    common = [each for each in tiny_training(tmp_path / "plain") if not each.startswith(replaced)]
    given = [f"target.path={tmp_path / 'target'}", "target=pretrained", "target.dtype=float32", "prompts=jsonl",
             f"prompts.source.path={tmp_path / 'conversations.jsonl'}", "prompts.source.field=turns",
             "data=conversations", "drafter=medusa", "decoding_prompts=0", "training.steps=2"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["train", *common, *given, f"folder={tmp_path / 'out'}"])
    train.main()
    facts = json.loads((tmp_path / "out" / train.PROVENANCE_FILE).read_text())
    assert facts["steps"] == 2 and facts["config"]["data"] == "conversations"
