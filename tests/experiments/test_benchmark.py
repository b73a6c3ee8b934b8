"""The benchmark: every entry decodes the same prompts, and its figures are those of its runs."""

import json
import statistics

import pytest
import torch
from hydra import compose, initialize
from omegaconf import OmegaConf
from torch._inductor.exc import InvalidCxxCompiler

from experiments import benchmark as benchmark_module
from experiments.benchmark import COLUMNS, Benchmark, check_before_loading, entries, peers_table, table, write
from experiments.config.resolvers import register_resolvers
from experiments.measurement.plan import Plan
from experiments.peers.engines import Arm, RunningPeer
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.kernels import compiled_graphs
from framework.prompts.prompt_set import Prompt, PromptSet

register_resolvers()  # options of drafters refer to embedded models
PROMPTS = [[5, 6, 7, 8, 5, 6], [9, 10, 9]]
PEER_ARMS = [Arm("openvino", "plain"), Arm("openvino_prompt_lookup", "prompt_lookup", 2)]


class PretendedEngine:
    """A process that decodes plainly as the target does, and with prompt lookup wrongly from the third token on."""

    name, version = "openvino", "0"

    def __init__(self, target):
        self._plain = Autoregressive(target=target, sampling=Sampling(temperature=0))

    def ask(self, request):
        stopping = Stopping(max_new_tokens=request["max_new_tokens"])
        (tokens,) = self._plain.generate([request["prompt"]], stopping=stopping, seeds=[0]).tokens
        if request["arm"] == "prompt_lookup":
            tokens = tokens[:2] + [(token + 1) % 50 for token in tokens[2:]]
        return {"tokens": tokens, "first_seconds": 1e-5}


def settings(*overrides: str):
    with initialize(version_base="1.3", config_path="../../conf"):
        return compose("benchmark", overrides=list(overrides))


@pytest.fixture(scope="module")
def rows():
    torch._dynamo.reset()
    target, sampling = tiny_target(num_hidden_layers=1), Sampling(temperature=0)
    drafters = {name: tiny_factory(name, 50)(target=target) for name in ("small_transformer", "prompt_lookup")}
    prompts = [Prompt(str(row), "code", tuple(tokens)) for row, tokens in enumerate(PROMPTS)]
    plan = Plan(
        prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=10),
        repeats=2,
        seed=0,
        hugging_face=False,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
        patch.setattr(benchmark_module, "PART_REPEATS", 1)  # as everywhere: see conftest.py
        peers = [RunningPeer(PretendedEngine(target), PEER_ARMS)]
        field = list(entries(settings("gamma=fixed", "gamma.gamma=2"), target, drafters, sampling, peers))
        benchmark = Benchmark(field, target, sampling, plan)
        found = benchmark.run()
    return found, {(each.name, each.mode): each.runs for each in field}


def decode_ms(batches):
    return 1000 * sum(run.decode_seconds for run in batches) / sum(run.num_decoded for run in batches)


@pytest.mark.slow
def test_all_decode_the_same_tokens(rows):
    """Hugging Face's loops too: at temperature 0 there is one right answer."""
    _, runs = rows
    tokens = {name: [run.generation.tokens for repeat in own for run in repeat] for name, own in runs.items()}
    del tokens["openvino_prompt_lookup", ""]
    (first, *others) = tokens.values()
    assert len(tokens) == 11
    assert all(other == first for other in others), tokens


@pytest.mark.slow
def test_figures(rows):
    found, runs = rows
    by_name = {(row.name, row.mode): row for row in found}
    for mode in ("eager", "compiled"):
        row, baseline = by_name["small_transformer", mode], by_name["baseline", mode]
        assert row.low <= row.ms <= row.high
        pairs = zip(runs["baseline", mode], runs["small_transformer", mode], strict=True)
        assert row.over["baseline"] == statistics.median(decode_ms(theirs) / decode_ms(ours) for theirs, ours in pairs)
        assert row.tau >= 1 and min(row.d, row.v, row.zero_overhead, row.efficiency) > 0
        assert baseline.efficiency is None and "baseline" not in baseline.over
    assert by_name["small_transformer", "compiled"].compile_seconds > 0 == by_name["baseline", "eager"].compile_seconds
    assert all(len(cells) == len(COLUMNS) for cells in table(found))


def end_to_end_ms(batches):
    return 1000 * sum(run.seconds for run in batches) / sum(len(run.generation.tokens[0]) for run in batches)


@pytest.mark.slow
def test_decoders_of_peers_are_timed_and_their_tokens_compared(rows):
    found, runs = rows
    by_name = {(row.name, row.mode): row for row in found}
    for peer in ("openvino", "openvino_prompt_lookup"):
        assert by_name[peer, ""].stages_ms == {"prefill": pytest.approx(len(PROMPTS) * 0.01)}
        pairs = zip(runs[peer, ""], runs["small_transformer", "compiled"], strict=True)
        ratio = statistics.median(end_to_end_ms(theirs) / end_to_end_ms(ours) for theirs, ours in pairs)
        assert by_name["small_transformer", "compiled"].over[peer] == ratio
    equal = {key: row.tokens_equal for key, row in by_name.items()}
    assert equal.pop(("baseline", "eager")) is None
    assert not equal.pop(("openvino_prompt_lookup", "")) and all(equal.values())
    assert {cells[1]: cells[-1] for cells in table(found)}["openvino_prompt_lookup"] == "‼ NO"
    heading, *cells = peers_table(found)
    assert heading == ["T", "decoder", "mode", "openvino", "openvino_prompt_lookup"]
    assert [row[1:3] for row in cells] == [[row.name, row.mode] for row in found if row.mode]
    assert cells[0][3] == f"{by_name['baseline', 'eager'].over['openvino']:.2f}"


@pytest.mark.slow
def test_what_is_written(rows, tmp_path):
    found, _ = rows
    write(found, tmp_path, {"machine": "a test"}, {})
    assert [row["name"] for row in json.loads((tmp_path / "benchmark.json").read_text())["rows"]] == [
        row.name for row in found
    ]
    ours = [row for row in found if row.mode]
    assert len((tmp_path / "benchmark.md").read_text().splitlines()) == 2 + len(found) + 1 + 2 + len(ours)
    assert (tmp_path / "benchmark.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("modes=[fast]", r"modes is \['fast'\]; allowed: a list of eager, compiled, at least one"),
        ("modes=[]", r"modes is \[\]; allowed"),
        ("modes=[eager] target.compile_prefill=true", r"compile_prefill is true, and modes is \['eager'\]; allowed: f"),
        ("modes=[eager,eager]", r"modes is \['eager', 'eager'\]; allowed: each of eager, compiled at most once"),
        ("engine.compile=false", r"engine.compile is False, and modes decides here; allowed: auto, with modes"),
        ("temperatures=[0,true]", r"temperatures is \[0, True\]; allowed: a list of numbers >= 0"),
        ("temperatures=[-1]", r"temperatures is \[-1\]; allowed: a list of numbers >= 0"),
        ("hugging_face=3", r"hugging_face is 3; allowed"),
        ("peers_gamma=[0]", r"peers_gamma is \[0\]; allowed: a list of whole numbers >= 1"),
        ("peers=[vllm]", r"peers is \['vllm'\]; allowed: a list of openvino, llama_cpp"),
    ],
)
def test_wrong_settings_are_named(override, message):
    with pytest.raises(ValueError, match=message):
        check_before_loading(settings(*override.split()))


@pytest.mark.slow
def test_policies_that_ask_are_told_costs_and_hugging_face_drafts_nothing_at_gamma_0():
    target, sampling = tiny_target(), Sampling(temperature=0)
    drafters = {"prompt_lookup": tiny_factory("prompt_lookup", 50)(target=target)}
    prompts = [Prompt("one", "code", tuple(PROMPTS[0]))]
    plan = Plan(
        prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=1),  # no round at all: nothing to explain
        repeats=1,
        seed=0,
        hugging_face=False,
    )
    adaptive = settings("gamma=expected_speedup", "modes=[eager]", "hugging_face=false")
    rows = Benchmark(list(entries(adaptive, target, drafters, sampling)), target, sampling, plan).run()
    assert [row.zero_overhead for row in rows] == [None, None]
    plain = settings("gamma=fixed", "gamma.gamma=0", "modes=[eager]")
    assert [each.name for each in entries(plain, target, drafters, sampling)][-1] == "hf_generate"


def test_without_a_compiler_there_are_no_compiled_graphs(monkeypatch):
    monkeypatch.setattr(compiled_graphs, "get_cpp_compiler", no_compiler)
    with pytest.raises(ValueError, match=r"there is no C\+\+ compiler; .* set modes=\[eager\]"):
        check_before_loading(settings("device=cpu"))
    check_before_loading(settings("device=cpu", "modes=[eager]"))


def no_compiler():
    raise InvalidCxxCompiler


def test_the_yaml_has_a_drafter_of_each_kind():
    assert set(OmegaConf.to_container(settings().drafters)) == {
        "small_transformer", "medusa", "medusa_chain", "ngram", "prompt_lookup",
    }  # fmt: skip
