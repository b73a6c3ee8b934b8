"""Training data of a target with an encoder: references, or the target's own answers."""

import pytest
from omegaconf import OmegaConf

from experiments.trainer.texts import read_text
from experiments.trainer.training_data import Samples
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.training.trainable import FILLER

PROMPTS = {
    "source": {"_target_": "framework.prompts.text_list.TextList", "texts": ["ab", "cde"]},
    "count": None,
    "max_prompt_tokens": None,
    "overflow": "error",
    "chat": False,
    "system": None,
}


def read(target, folder, *, data="samples", prompt_tokens=None):
    samples = Samples(count=3, prompt_tokens=prompt_tokens, new_tokens=5, temperatures=[0], batch=2)
    cfg = OmegaConf.create({"data": data, "prompts": PROMPTS, "seed": 0})
    return read_text(cfg, target, samples, window=16, folder=folder)


def test_answers_are_the_targets_own(tmp_path):
    target = tiny_target("t5")
    sources = [target.tokenizer(text)["input_ids"] for text in ("ab", "cde", "ab")]
    plain = Autoregressive(target=target, sampling=Sampling(temperature=0))
    stopping = Stopping(max_new_tokens=5, eos_ids=(target.tokenizer.eos_token_id,))
    answers = plain.generate(sources, stopping=stopping, seeds=[0, 1, 2]).tokens
    pairs = read(target, tmp_path).sample_evenly(3)
    found = [[[token for token in side if token != FILLER] for side in pair] for pair in pairs.tolist()]
    expected = [[source, target.model.text_start + answer] for source, answer in zip(sources, answers, strict=True)]
    assert sorted(found) == sorted(expected)


def test_only_whole_sources_are_answered(tmp_path):
    target = tiny_target("t5")
    with pytest.raises(ValueError, match=r"samples\.prompt_tokens is 8; allowed for a target with an encoder: null"):
        read(target, tmp_path, prompt_tokens=8)
    with pytest.raises(ValueError, match=r"data is 'conversations'; allowed for a target with an encoder: texts, from"):
        read(target, tmp_path, data="conversations")
