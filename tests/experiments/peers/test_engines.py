"""Peers of a benchmark: their settings, what is left out, and which models are converted."""

from dataclasses import replace

import pytest
import torch
from hydra import compose, initialize

from experiments.measurement.plan import Plan
from experiments.peers import engines
from experiments.peers.engines import PEERS, Peer, check_peers, decoders_at, running_peers
from framework.conformance.tiny_models import tiny_model, tiny_target
from framework.core.logits_processors import LogitsProcessors
from framework.core.sampling import Sampling
from framework.decoding.stopping import Stopping
from framework.prompts.prompt_set import Prompt, PromptSet


def settings(*overrides: str):
    with initialize(version_base="1.3", config_path="../../../conf"):
        return compose("benchmark", overrides=["device=cpu", *overrides])


def plan(*lengths: int) -> Plan:
    prompts = [Prompt(str(length), "code", tuple(range(1, length + 1))) for length in lengths]
    return Plan(
        prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=10),
        repeats=1,
        seed=0,
        hugging_face=False,
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["peers=[vllm]"], r"peers is \['vllm'\]; allowed: a list of openvino, llama_cpp, each at most once"),
        (["peers=[openvino,openvino]"], r"peers is \['openvino', 'openvino'\]; allowed: .* at most once"),
        (["peers=openvino"], r"peers is 'openvino'; allowed: a list of openvino, llama_cpp"),
        (["peers=[openvino]", "batch_size=2"], r"batch_size is 2; allowed: 1 with peers"),
        (["peers=[openvino]", "refill=true"], r"refill is True; allowed: False with peers"),
        (["peers=[openvino]", "stop_strings=[a]"], r"stop_strings is \['a'\]; allowed: \[\] with peers"),
        (["peers=[openvino]", "target.dtype=bfloat16"], r"target.dtype is 'bfloat16'; allowed: float32 with peers"),
    ],
)
def test_wrong_settings_are_named(overrides, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        check_peers(settings(*overrides))


def test_peers_need_their_settings_only_if_there_are_any():
    check_peers(settings("batch_size=2", "refill=true", "stop_strings=[a]", "target.dtype=bfloat16"))
    check_peers(settings("peers=[openvino,llama_cpp]"))


def test_an_engine_that_is_not_installed_is_left_out_with_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "gguf" else object())
    with running_peers(["llama_cpp"], tiny_target(), None, plan(3), gammas=[4]) as running:
        assert running == []
    assert capsys.readouterr().out == "llama_cpp is left out: it is not installed; pip install -e '.[llama-cpp]'\n"


@pytest.mark.parametrize(
    ("name", "model", "problem"),
    [
        ("llama_cpp", tiny_model("qwen2"), "a model of type qwen2; llama.cpp's conversion knows Llamas without biases"),
        ("llama_cpp", tiny_model(attention_bias=True), "a model of type llama; .* without biases"),
        (
            "llama_cpp",
            tiny_model(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}),
            "a Llama with rotary angles 'dynamic'; llama.cpp's conversion knows default, linear, yarn, llama3",
        ),
        ("openvino", tiny_model("t5"), "an encoder-decoder model"),
        ("openvino", tiny_model("mistral", sliding_window=8), "a model of other layers than full attention"),
    ],
    ids=["architecture", "biases", "rotary angles", "encoder", "window"],
)
def test_models_that_cannot_be_converted_are_named(name, model, problem):
    assert not PEERS[name].why_not(tiny_model())
    target = replace(tiny_target(), model=type("CachedLM", (), {"model": model})())
    with pytest.raises(ValueError, match=rf"^peers is '{name}', but the target is {problem}.*; allowed: \[\] for this"):
        engines._check_target(name, target)


def test_a_target_whose_logits_are_processed_is_refused():
    processors = LogitsProcessors({"repetition_penalty": 1.2}, vocabulary_size=50)
    with pytest.raises(ValueError, match=r"whose generation_config changes its logits \(repetition_penalty\)"):
        engines._check_target("openvino", replace(tiny_target(), processors=processors))


def test_weights_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"^peers is 'openvino', but .* whose weights are not in float32; "):
        engines._check_target("openvino", tiny_target(dtype=torch.bfloat16))


@pytest.fixture
def counting(monkeypatch, tmp_path):
    """Counting as an engine, and the models that were converted for it."""
    converted = []

    def write(model, tokenizer, path):
        converted.append(model)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a model")

    arms = {"plain": "counting", "draft_model": "counting_draft_model", "prompt_lookup": "counting_prompt_lookup"}
    module = "tests.support.pretend_engine"
    peer = Peer("extra", "pytest", ("json",), module, write, arms, why_not=lambda model: "")
    monkeypatch.setitem(PEERS, "counting", peer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return converted


def test_models_are_converted_once_per_weights_and_arms_depend_on_gamma_and_temperature(counting, capsys):
    target, drafter = tiny_target(), tiny_target(seed=1).model

    def names(*, drafter, gammas, **sampling):
        with running_peers(["counting"], target, drafter, plan(3, 7), gammas=gammas) as running:
            return [name for name, _ in decoders_at(running, Sampling(**sampling))]

    every = ["counting", "counting_draft_model", "counting_prompt_lookup"]
    assert names(drafter=drafter, gammas=[4], temperature=0) == every
    assert counting == [target.model.model, drafter.model]
    assert names(drafter=None, gammas=[4], temperature=0) == ["counting", "counting_prompt_lookup"]
    assert names(drafter=None, gammas=[2, 4], temperature=0) == [
        "counting", "counting_prompt_lookup_2", "counting_prompt_lookup_4",
    ]  # fmt: skip
    assert names(drafter=drafter, gammas=[0], temperature=0) == ["counting"]
    assert names(drafter=drafter, gammas=[4], temperature=0.5) == ["counting"]
    assert names(drafter=drafter, gammas=[4], temperature=0, top_k=5) == every
    assert "peers are left out" not in capsys.readouterr().out
    assert names(drafter=drafter, gammas=[4], temperature=0.5, top_k=5) == []
    assert "T=0.5: peers are left out: they sample with no option but temperature" in capsys.readouterr().out
    assert len(counting) == 2
