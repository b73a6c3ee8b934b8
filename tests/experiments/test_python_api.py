"""The Python interface: what its document shows runs as it stands, and what it returns is what the loop did."""

import itertools
import re
import sys
from pathlib import Path

import nbformat
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from nbclient import NotebookClient

from experiments import measure
from experiments.api import Pair, compare_drafters, load_pair
from experiments.reporting.token_colours import DARK, LIGHT, page_rules
from experiments.results.records import load_records
from framework.conformance.tiny_models import save_tiny, tiny_model, tiny_tokenizer
from framework.decoding.autoregressive import Autoregressive

ROOT = Path(__file__).parents[2]
GREEDY = ("drafter=prompt_lookup", "sampling.temperature=0", "gamma.gamma=3", "max_new_tokens=24")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(*GREEDY)


SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python_api.md").read_text(), re.DOTALL)
DECODING = [snippet for snippet in SNIPPETS if not re.search("measure|compare_drafters|custom_generate", snippet)]


@pytest.mark.slow
def test_what_the_document_decodes_runs_as_it_stands(capsys):
    namespace: dict = {}
    assert len([line for line in SNIPPETS[0].splitlines() if line]) <= 5 and len(DECODING) >= 7
    for snippet in DECODING:
        exec(snippet, namespace)
    printed = capsys.readouterr().out
    assert "tokens were drafted" in printed and "drafter is 'medsa'; did you mean medusa?" in printed
    assert 0 < namespace["completion"].alpha < 1 < namespace["completion"].tau
    assert namespace["total"].num_rounds > 3


@pytest.mark.slow
def test_the_whole_document_runs_as_it_stands(capsys):
    namespace: dict = {}
    for snippet in SNIPPETS:
        exec(snippet, namespace)
    assert "Speedups are relative" in capsys.readouterr().out
    assert list(namespace["compared"].to_dataframe()["gamma"]) == [4, 8]


# Lines about progress, of which a slow machine prints more.
NO_LINES = "from experiments.config import progress; progress.SECONDS_PER_LINE = 10_000"


@pytest.mark.slow
def test_the_tour_runs_and_holds_what_it_printed(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "ignore:IProgress")  # as make tour: tqdm advises to install ipywidgets
    text = (ROOT / "docs" / "tour.ipynb").read_text(encoding="utf-8")
    assert str(ROOT) not in text and not re.search(r"/(home|root|Users|work|tmp)/", text) and len(text) < 200_000
    committed = nbformat.reads(text, as_version=4)
    executed = nbformat.reads(text, as_version=4)
    executed.cells.insert(0, nbformat.v4.new_code_cell(NO_LINES))
    NotebookClient(executed, timeout=1200, resources={"metadata": {"path": str(ROOT)}}).execute()
    del executed.cells[0]
    pairs = [
        (ours, theirs) for ours, theirs in zip(committed.cells, executed.cells, strict=True) if ours.cell_type == "code"
    ]
    assert [ours.execution_count for ours, _ in pairs] == list(range(1, len(pairs) + 1))
    for ours, theirs in pairs:
        assert [kinds(output) for output in ours.outputs] == [kinds(output) for output in theirs.outputs]
    assert "image/png" in {kind for _, theirs in pairs for output in theirs.outputs for kind in kinds(output)}


def kinds(output: nbformat.NotebookNode) -> list[str]:
    """The types of a cell's output."""
    return sorted(output.get("data", [output.get("name")]))


@pytest.mark.slow
def test_greedy_text_and_passes_are_those_of_plain_decoding(pair):
    prompt = "import os\nimport sys\nimport "
    completion = pair.generate(prompt)
    tokenizer = pair.target.tokenizer
    plain = Autoregressive(target=pair.target, sampling=pair.engine.sampling).generate(
        [tokenizer(prompt)["input_ids"]], stopping=pair.stopping, seeds=[0]
    )
    assert [[token.id for token in completion.tokens]] == plain.tokens
    assert completion.text == tokenizer.decode(plain.tokens[0]) and str(completion) == prompt + completion.text
    assert completion.finish_reason == "length"
    assert completion.target_passes < len(completion.tokens) - 1


@pytest.mark.slow
def test_producers_agree_with_the_counts():
    pair = load_pair("drafter=prompt_lookup", "gamma.gamma=3")
    completion = pair.generate("def f(x):\n    return x\n\ndef g(x):\n    return x\n", max_new_tokens=60)
    made = [token.producer for token in completion.tokens]
    accepted, tested = sum(completion.tally.accepted_by_position), sum(completion.tally.tested_by_position)
    assert made.count("accepted") == accepted > 0
    assert made.count("replaced") == tested - accepted > 0  # a chain loses at most one node a round
    assert len(made) - made.count("accepted") == 1 + completion.target_passes
    assert completion.alpha == accepted / tested


def test_a_stream_grows_into_what_generate_returns(pair):
    lengths, texts = [], []
    for completion in pair.stream("import os\nimport sys\n"):
        lengths.append(len(completion.tokens))
        texts.append(completion.text)
    assert lengths == sorted(set(lengths)) and lengths[0] == 1
    assert all(whole.startswith(part) for part, whole in itertools.pairwise(texts))
    assert completion.tokens == pair.generate("import os\nimport sys\n").tokens


def test_a_stream_ends_where_another_generation_began(pair):
    stream = pair.stream("import os\nimport sys\n")
    next(stream)
    pair.generate("import os", max_new_tokens=2)
    with pytest.raises(RuntimeError, match="another generation with this target began"):
        next(stream)


def test_decoding_under_autocast_is_refused(pair):
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match=r"torch\.autocast is on"):
        pair.generate("import os")
    assert pair.generate("import os", max_new_tokens=2).tokens


@pytest.mark.slow
def test_what_is_behind_a_stop_string_is_never_shown():
    pair = load_pair(*GREEDY, "stop_strings=['\n']")
    *earlier, completion = [each.text for each in pair.stream("import os\nimport sys\nimport ")]
    assert completion.count("\n") == 1 and all("\n" not in text for text in earlier)


@pytest.mark.slow
def test_it_goes_on_beside_whoever_else_uses_hydra():
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.2"):
        theirs = GlobalHydra.instance().hydra
        load_pair(*GREEDY)
        assert GlobalHydra.instance().hydra is theirs
        assert compose("measure", ["drafter=ngram"]).drafter.order == 4
    load_pair(*GREEDY)
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.parametrize("compile_", ["false", "auto"])
def test_prefills_are_compiled_only_if_rounds_are(compile_):
    with pytest.raises(ValueError, match=r"compile_prefill is true, and engine.compile is \S+; allowed: false"):
        load_pair("drafter=prompt_lookup", f"engine.compile={compile_}", "target.compile_prefill=true")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("gamma.gamma=-1", "gamma.gamma is -1"),
        ("sampling.top_p=2", "sampling.top_p is 2"),
        ("max_new_tokens=0", "max_new_tokens is 0"),
        ("engine.compile=perhaps", "engine.compile is 'perhaps'"),
        ("target.compile_prefill=4", "target.compile_prefill is 4; allowed: true"),
        ("verifier=k_seq", "verifier"),
        ("prompts.chat=true", "prompts.chat is True"),
        ("drafter=medsa", "drafter is 'medsa'; did you mean medusa?"),
        ("gama.gamma=3", "gama.gamma is no option of measure; did you mean gamma.gamma?"),
        ("hydra.foo=3", "hydra.foo"),
        ("gamma=1,2", "gamma.gamma=1,2 has several values"),
        ("tracker=wandb", "tracker=wandb is for commands"),
        ("target.path=${nowhere}", "nowhere"),
        ("target._target_=nowhere.Class", "nowhere"),
        ("target=pretrained", "target.path has no value yet"),
        ("drafter.max_ngram=0", "drafter.max_ngram is 0"),
        (4, "4 is no override"),
    ],
)
def test_what_is_wrong_is_a_value_error_of_one_line_with_its_key(wrong, says):
    drafter = ["drafter=transformer_tree"] if wrong == "verifier=k_seq" else ["drafter=prompt_lookup"]
    before = HydraConfig.instance().cfg
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        load_pair(*([] if str(wrong).startswith("drafter=") else drafter), wrong)
    assert "\n" not in str(raised.value) and HydraConfig.instance().cfg is before


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        (4, {}, "prompt is 4; allowed: a text, or a list of texts"),
        (["a", None], {}, "prompt is None"),
        ([], {}, "there are no prompts"),
        (["a", ""], {}, "prompt 1 is empty"),
        ("a", {"seed": -1}, "seed is -1"),
        ("a", {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_what_cannot_be_decoded_is_a_value_error(pair, prompt, options, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        pair.generate(prompt, **options)


COUNTED = ("tau", "alpha/empirical", "alpha/position/1", "alpha/position/2", "alpha/check")


@pytest.mark.slow
def test_a_batch_holds_the_completions_of_its_prompts_alone():
    pair = load_pair("drafter=prompt_lookup", "gamma=3", "stop_strings=['):']", "sampling.temperature=0.6")
    prompts = ["import os\nimport sys\nimport ", "def f(x", "def f(x):\n    return x\n\ndef g(x):\n    return x\n"]
    together = pair.generate(prompts, max_new_tokens=20, seed=5, detailed=True)
    for row, (prompt, completion) in enumerate(zip(prompts, together, strict=True)):
        alone = pair.generate(prompt, max_new_tokens=20, seed=5 + row, detailed=True)
        assert completion.tokens == alone.tokens and completion.finish_reason == alone.finish_reason
        assert {key: completion.metrics[key] for key in COUNTED} == {key: alone.metrics[key] for key in COUNTED}
        assert completion.metrics["alpha/overlap"] == pytest.approx(alone.metrics["alpha/overlap"], rel=1e-4)
        assert set(completion.seconds) == set(alone.seconds)
    assert len({completion.finish_reason for completion in together}) == 2  # one row ended before the others


LIKE_LOADED = ("sampling.temperature=0", "gamma=3", "max_new_tokens=12")


@pytest.fixture(scope="module")
def loaded() -> dict:
    """A tiny target and a draft model as a program has them, the target with dropout that training would apply."""
    target = tiny_model("llama", seed=1, attention_dropout=0.5).train()
    return {"target": target, "tokenizer": tiny_tokenizer(), "draft_model": tiny_model("llama", seed=2)}


@pytest.mark.slow
def test_loaded_models_decode_as_those_of_a_folder(loaded, tmp_path):
    save_tiny(tmp_path / "target", seed=1)
    save_tiny(tmp_path / "drafter", seed=2)
    path = ("target=pretrained", f"target.path={tmp_path / 'target'}", f"drafter.model.path={tmp_path / 'drafter'}")
    expected = load_pair(*path, "target.dtype=float32", "device=cpu", *LIKE_LOADED).generate(["abc", "b"])
    pair = load_pair(*LIKE_LOADED, **loaded)
    got = pair.generate(["abc", "b"])
    assert [each.tokens for each in got] == [each.tokens for each in expected]
    assert [each.tau for each in got] == [each.tau for each in expected]
    assert pair.target.model.model is loaded["target"]  # no copy


@pytest.mark.slow
def test_a_measured_pair_of_loaded_models_names_them(loaded):
    (record,) = load_pair(*LIKE_LOADED, "hugging_face=false", **loaded).measure(["abc", "a ${b}"], repeats=1).records
    assert record.config["target"]["path"] == "LlamaForCausalLM" and record.config["target"]["dtype"] == "float32"
    assert record.config["drafter"]["model"]["path"] == "LlamaForCausalLM" and record.config["repeats"] == 1
    assert record.point["prompts"] == "texts" and record.metrics["tokens_equal_baseline"]
    assert record.counts["prompts"] == 2 and len(record.prompts) == 2


@pytest.mark.slow
def test_a_measurement_is_that_of_the_command(tmp_path, monkeypatch):
    save_tiny(tmp_path / "target", seed=1)
    overrides = [
        "target=pretrained", f"target.path={tmp_path / 'target'}", "target.dtype=float32", "device=cpu",
        "drafter=prompt_lookup", "max_new_tokens=12", "repeats=1", "seed=3", "tracker=jsonl",
    ]  # fmt: skip
    arguments = ["prompts=texts", 'prompts.source.texts=["abcabc","bcb"]', f"hydra.run.dir={tmp_path / 'run'}"]
    monkeypatch.setattr(sys, "argv", ["measure", *overrides, *arguments])
    measure.main()
    (command,) = load_records(tmp_path / "run")
    (python,) = load_pair(*overrides[:-1]).measure(["abcabc", "bcb"]).records
    assert python.counts == command.counts and python.config == command.config and python.seeds == command.seeds
    assert python.point == command.point and python.name == command.name
    assert set(python.metrics) == set(command.metrics)


@pytest.mark.slow
def test_drafters_are_compared_in_one_run(loaded, tmp_path):
    compared = compare_drafters(
        {"lookup": "drafter=prompt_lookup", "long lookup": ["drafter=prompt_lookup", "gamma=6"]},
        *LIKE_LOADED,
        prompts=["abcabcabc", "bcbcb"],
        repeats=1,
        target=loaded["target"],
        tokenizer=loaded["tokenizer"],
    )
    assert [(record.point["drafter"], record.point["gamma"]) for record in compared.records] == [
        ("lookup", 3),
        ("long lookup", 6),
    ]
    starts = {record.started for record in compared.records}
    assert len(starts) == 1 and all(record.metrics["tokens_equal_baseline"] for record in compared.records)
    assert len(load_records(compared.save(tmp_path / "saved"))) == 2


@pytest.mark.parametrize(
    ("drafters", "overrides", "says"),
    [
        ({}, [], "drafters is {}"),
        (["drafter=ngram"], [], "drafters is ['drafter=ngram']"),
        ({"a/b": "drafter=ngram"}, [], "drafters is 'a/b'"),
        ({"a": {"drafter": "ngram"}}, [], "drafters['a'] is {'drafter': 'ngram'}; allowed: an override such as"),
        ({"a": None}, [], "drafters['a'] is None"),
        ({"a": "sampling.temperature=0"}, [], "drafters['a'] has 'sampling.temperature=0'"),
        ({"a": "drafter=medsa"}, [], "drafter is 'medsa'; did you mean medusa?"),
        ({"a": "drafter=ngram"}, ["gama=4"], "gama is no option of measure"),
    ],
)
def test_a_wrong_comparison_is_a_value_error(drafters, overrides, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        compare_drafters(drafters, *overrides, prompts=["a"])


@pytest.mark.parametrize(
    ("given", "overrides", "says"),
    [
        ({"target": "Qwen/Qwen3-0.6B", "tokenizer": tiny_tokenizer()}, [], "target is 'Qwen/Qwen3-0.6B'"),
        ({"target": tiny_model()}, [], "target is given without tokenizer"),
        ({"tokenizer": tiny_tokenizer()}, [], "tokenizer is given without target"),
        ({"target": tiny_model(), "tokenizer": "a"}, [], "tokenizer is 'a'"),
        ({"target": tiny_model(), "tokenizer": tiny_tokenizer()}, ["target=zoo"], "target=zoo is given as well"),
        ({"draft_model": tiny_model()}, ["drafter.model.path=a"], "drafter.model.path=a is given as well"),
        ({"draft_model": tiny_model()}, ["drafter=medusa"], "draft_model is given, and drafters.medusa.Medusa"),
        ({"draft_model": 3}, [], "draft_model is 3"),
    ],
)  # fmt: skip
def test_loaded_models_that_do_not_fit_are_a_value_error(given, overrides, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        load_pair(*overrides, **given)


def test_a_notebook_gets_the_text_with_its_colours_and_no_markup_of_the_model_s(pair):
    completion = pair.generate("<b>&", max_new_tokens=8)
    shown = completion._repr_html_()
    assert "&lt;b&gt;&amp;" in shown and "<b>" not in shown
    assert shown.count('title="') == len(completion.tokens) and completion.in_words in shown
    # In the page's own shades.
    assert all(LIGHT[token.producer].background in shown for token in completion.tokens)
    assert all(colours.background in page_rules() for palette in (LIGHT, DARK) for colours in palette.values())


def test_an_encoder_decoder_model_reads_a_prompt_as_its_source(tmp_path):
    save_tiny(tmp_path / "t5", family="t5", vocabulary=30)
    pair = load_pair("target=pretrained", f"target.path={tmp_path / 't5'}", "target.dtype=float32", *GREEDY)
    assert len(pair.generate("ab c").tokens) == 24
