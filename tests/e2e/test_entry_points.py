"""What a user types: measure, a multirun, compare; and what is said when it is wrong."""

import itertools
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from drafters.prompt_lookup import PromptLookup
from experiments import compare, measure, train
from experiments.config import builders, resolvers
from experiments.config.command_line import checked_arguments
from experiments.corpora.standard_library import StandardLibrary
from experiments.proof.tiny_drafters import FITTED
from experiments.results.records import group_records, load_records
from experiments.tracking.wandb_reading import read_offline_run
from framework.conformance.tiny_models import save_tiny
from framework.drafting.layer_set import LayerSet, save_layer_set
from framework.heads.acceptance_head import AcceptanceHead, save_head
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import load_target

CORPUS = 'def ab(c):\n    """Ab ca bab ba."""\n    a = c\n    b = a\n    return b\n\n\n# ' + "Ab ca bab. " * 300
CONF = Path(measure.__file__).parents[1] / "conf"
# Overrides of studies that ask for more than the tiny models have, or for many points that are alike.
FITTING = {
    "blockwise_translation": ["drafter.path=${zoo:medusa}"],
    "early_exit": ["drafter.exit_after=1,2"],
    "gamma_policies": ["sampling.temperature=1"],
    "paper_table2": ["gamma.gamma=2"],
    "paper_table2_larger": ["gamma.gamma=2", "+paper_drafter=small", "engine.compile=false"],
    "paper_table5": ["gamma.gamma=2"],
}
STUDIES = sorted(path for path in (CONF / "study").glob("*.yaml") if "experiments.measure -m" in path.read_text())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> list[str]:
    """Overrides that put tiny models and prompts in the place of the embedded ones."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "target", seed=1, context=256)
    save_tiny(folder / "drafter", seed=2, context=256)
    for size in ("small", "base", "large"):  # of the tasks of the paper's tables
        save_tiny(folder / f"drafter_{size}", seed=3, context=256)
        save_tiny(folder / "translation" / f"drafter_{size}", seed=4, context=256)
    (folder / "summaries").symlink_to(folder / "translation")
    target = load_target(path=str(folder / "target"), dtype="float32", device="cpu", attention="sdpa", context=None)
    save_head(folder / "stop_head", AcceptanceHead(width=2, num_blocks=1), {})
    for name, save in FITTED.items():
        save(folder / name, target)
    layers = LayerSet(target.model.model.config.num_hidden_layers, (0,), (0,))
    save_layer_set(folder / "layer_skip.yaml", layers, fingerprint=target.fingerprint, facts={})
    lines = [
        {"prompt": "def ab(x):", "kind": "code", "turns": ["ab", "cd"], "category": "writing"},
        {"prompt": "return", "kind": "code", "turns": ["ef"], "category": "rag"},
        {"prompt": "z", "kind": "one", "turns": ["z"], "category": "qa"},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "argparse.py").write_text(CORPUS)
    return [
        "target=pretrained",
        f"target.path={folder / 'target'}",
        "target.dtype=float32",
        "device=cpu",
        "prompts=jsonl",
        f"prompts.source.path={folder / 'prompts.jsonl'}",
        "prompts.source.category_field=kind",
        "max_new_tokens=12",
        "repeats=1",
        "hugging_face=false",
    ]


def run(entry_point, monkeypatch, capfd, *arguments: str) -> str:
    """Call an entry point as the command line would; returns what it printed. SystemExit passes through."""
    monkeypatch.setattr(sys, "argv", [entry_point.__name__, *arguments])
    entry_point.main()
    captured = capfd.readouterr()
    return captured.out + captured.err


def fitted_to(tiny: list[str]) -> list[str]:
    """Overrides that put what was made for the tiny target in the place of what was made for the embedded one."""
    folder = folder_of(tiny)
    return [
        f"drafters.ngram.corpus.folder={folder}",
        f"drafters.corpus_unigram.corpus.folder={folder}",
        f"drafters.small_transformer.model.path={folder}/drafter",
        f"drafters.medusa.path={folder}/medusa",
        f"drafters.layer_skip.layers={folder}/layer_skip.yaml",
    ]


def folder_of(tiny: list[str]) -> str:
    (path,) = (each.removeprefix("target.path=") for each in tiny if each.startswith("target.path="))
    return str(Path(path).parent)


def test_one_point_leaves_a_complete_record(tiny, tmp_path, monkeypatch, capfd):
    out = run(measure, monkeypatch, capfd, *tiny, "drafter=prompt_lookup", "sampling.temperature=1", "gamma.gamma=2",
              f"hydra.run.dir={tmp_path}")  # fmt: skip
    (record,) = load_records(tmp_path)
    assert record.name == "prompt_lookup-T1-g2" and "prompt_lookup" in out
    assert record.point["guarantee"] == "exact" and record.point["gamma"] == 2
    metrics = record.metrics
    for key in ("alpha/overlap", "alpha/empirical", "tau", "tau/eq1", "c", "d", "v", "speedup/predicted",
                "speedup/zero_overhead", "speedup/measured", "speedup/end_to_end", "efficiency", "overhead",
                "operations", "latency/p50", "latency/p99", "ms_per_token", "baseline_ms_per_token"):  # fmt: skip
        assert isinstance(metrics[key], float), key
    assert metrics["alpha/check"] is True  # a false alarm in 1 of 8,000 runs, but the seeds are fixed
    assert metrics["efficiency"] > 0 and metrics["overhead"] == pytest.approx(1 - metrics["efficiency"])
    assert record.seeds == [0, 1, 2] and record.chat is False
    assert record.versions["torch"] and record.machine["cores"]
    assert record.config["gamma"]["gamma"] == 2 and record.counts["prompts"] == 3
    lines = [json.loads(line) for line in (tmp_path / record.name / "prompts.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines] == [row["name"] for row in record.prompts]
    assert sum(line["new_tokens"] - 1 for line in lines) == record.counts["committed"]
    for count in ("accepted", "tested"):
        assert sum(line[count] for line in lines) == record.counts[count]
    for line in lines:
        assert "".join(token["text"] for token in line["tokens"]) == line["text"]
        assert len(line["decode_seconds"]) == len(line["baseline_decode_seconds"]) == record.config["repeats"]
    assert (tmp_path / "table.md").exists() and (tmp_path / "speedups.png").exists()


@pytest.mark.slow
def test_a_four_point_multirun_leaves_four_offline_runs_and_an_overview(tiny, tmp_path, monkeypatch, capfd):
    corpus = f"drafter.corpus.folder={folder_of(tiny)}"
    points = ["drafter=ngram", corpus, "gamma.gamma=1,3", "sampling.temperature=0,1"]
    run(measure, monkeypatch, capfd, "-m", *tiny, *points, f"hydra.sweep.dir={tmp_path}")
    runs = [read_offline_run(path) for path in sorted(tmp_path.rglob("offline-run-*")) if path.is_dir()]
    (overview,) = (offline for offline in runs if offline["job_type"] == "overview")
    runs.remove(overview)
    assert overview["summary"]["overview/table"]["nrows"] == overview["config"]["points"] == len(runs) == 4
    seen = set()
    for offline in runs:
        config, summary = offline["config"], offline["summary"]
        seen.add((config["gamma"], config["temperature"]))
        record = next(
            r for r in load_records(tmp_path)
            if (r.point["gamma"], r.point["temperature"]) == (config["gamma"], config["temperature"])
        )  # fmt: skip
        assert config["drafter"] == "ngram" and config["config"]["max_new_tokens"] == 12
        assert summary["alpha/overlap"] == pytest.approx(record.metrics["alpha/overlap"])
        assert summary["ms_per_token"] == pytest.approx(record.metrics["ms_per_token"])
        assert summary["walltime_seconds"] > 0
    assert seen == {(1, 0), (1, 1), (3, 0), (3, 1)}


@pytest.mark.slow
def test_compare_measures_every_drafter_and_reads_its_records_again(tiny, tmp_path, monkeypatch, capfd):
    out = run(compare, monkeypatch, capfd, *tiny, *fitted_to(tiny), "batch_size=2",
              "prompts.count=null", f"hydra.run.dir={tmp_path / 'first'}")  # fmt: skip
    records = load_records(tmp_path / "first")
    points = {(r.point["drafter"], r.point["temperature"]) for r in records}
    drafters = {
        "small_transformer", "medusa", "layer_skip", "ngram", "prompt_lookup", "corpus_unigram", "uniform_random",
    }  # fmt: skip
    assert points == {(drafter, temperature) for drafter in drafters for temperature in (0, 0.8)}
    assert all(drafter in out for drafter in drafters)
    assert all(r.metrics["tokens_equal_baseline"] for r in records if r.point["temperature"] == 0)
    assert all(r.metrics["alpha/check"] for r in records)
    (overview,) = (tmp_path / "first").glob("wandb/offline-run-*/files/media/table/overview/*.json")
    assert len(json.loads(overview.read_text())["data"]) == len(points)

    for source in ("first", "first/wandb"):  # the files, and the offline runs
        folder = tmp_path / "again" / source
        again = run(compare, monkeypatch, capfd, f"records={tmp_path / source}", f"hydra.run.dir={folder}")
        assert all(drafter in again for drafter in drafters)
        assert (folder / "table.md").read_text() == (tmp_path / "first" / "table.md").read_text()
        pages = [(each / "report.html").read_text() for each in (tmp_path / "first", folder)]
        assert pages[0] == pages[1] and all(drafter in pages[0] for drafter in drafters)

    folders = f"records={tmp_path / 'first'}", f"compare_to={tmp_path / 'first'}"
    changed = run(compare, monkeypatch, capfd, *folders, f"hydra.run.dir={tmp_path / 'third'}")
    assert "Before and after" in changed and "+0.00 (+0.00 to +0.00)" in changed
    assert (tmp_path / "third" / "report.html").read_text().count("+0.00 (+0.00 to +0.00)") == len(records)


# What can be known to be wrong without a model is, before one is loaded.
COST_NO_MODEL = {
    "gamma.gamma=-1", "batch_size=0", "sampling.top_p=1.5", "prompts.source.path=nowhere.jsonl", "device=abacus",
    "drafter.max_ngram=1.5", "+drafter.depth=1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["gamma.gamma=-1"], "gamma.gamma is -1"),
        (["sampling.temperature=-0.5"], "sampling.temperature is -0.5"),
        (["drafter.max_ngram=1.5"], "drafter.max_ngram is 1.5"),
        (["sampling.top_p=0"], "sampling.top_p is 0"),
        (["sampling.top_p=1.5"], "sampling.top_p is 1.5"),
        (["drafter.nonsense=3"], "nonsense"),
        (["stop_strings=abc"], "stop_strings is 'abc'"),
        (["prompts.count=abc"], "prompts.count is 'abc'"),
        (["prompts.max_prompt_tokens=0"], "prompts.max_prompt_tokens is 0"),
        (["max_new_tokens=0"], "max_new_tokens is 0"),
        (["batch_size=0"], "batch_size is 0"),
        (["refill=maybe"], "refill is 'maybe'"),
        (["run_completions=true"], "run_completions is True; allowed: false, or prompts with tests"),
        (
            ["run_completions=true", "prompts.source.tests=pass", "prompts.max_prompt_tokens=9"],
            "with prompts cut; allowed",
        ),
        (["arrivals.rate=5"], "arrivals.rate is 5, and refill is false; allowed: null, or refill=true"),
        (["arrivals.rate=0", "refill=true"], "arrivals.rate is 0; allowed: a number > 0"),
        (["repeats=0"], "repeats is 0"),
        (["seed=-1"], "seed is -1"),
        (["threads=0"], "threads is 0"),
        (["device=abacus"], "device is 'abacus'"),
        (["prompts.source.path=nowhere.jsonl"], "prompts.source.path"),
        (["prompts.source.field=text"], "prompts.source.field"),
        (["prompts.overflow=shrug"], "prompts.overflow"),
        (["target.path=nowhere/at/all"], "target.path"),
        (["target.dtype=float3"], "target.dtype"),
        (["target.attention=flash"], "target.attention"),
        (["target.context=100000"], "target.context"),
        (["max_new_tokens=300"], "max_new_tokens"),
        (["drafter.match=middle"], "drafter.match"),
        (["drafter=ngram", "drafter.order=0"], "drafter.order"),
        (["drafter=ngram", "drafter.smoothing=butter"], "drafter.smoothing"),
        (["drafter=ngram", "drafter.corpus.folder=nowhere"], "nowhere"),
        (["tracker.mode=sometimes"], "tracker.mode"),
        (["tracker.sync_seconds='../..'"], "tracker.sync_seconds is '../..'"),
        (["device=0.5"], "device is 0.5"),
        (["threads=99999999999999999999"], "threads is"),
        (["stop_at_eos=flase"], "stop_at_eos is 'flase'"),
        (["stop_strings=[1,2]"], "stop_strings is [1, 2]"),
        (["target.dtype=[]"], "target.dtype is []"),
        (["prompts.source.path=1"], "prompts.source.path is 1"),
        (["prompts.source.field=[a]"], "prompts.source.field is ['a']"),
        (["drafter.match=???"], "drafter.match has no value"),
        (["drafter=ngram", "drafter.corpus=abc"], "drafter.corpus is 'abc'"),
        (["drafter=small_transformer", "drafter.model=abc"], "drafter.model is 'abc'"),
        (["drafter=ngram", "drafter.order=99999999999999999999"], "drafter.order is"),
        (["+prompts.source.seed=1"], "prompts.source.seed is unknown; allowed: path, "),
        (["+drafter.depth=1"], "drafter.depth is unknown; allowed: "),
        (
            ["drafter=online_small_transformer", "drafter.drafter.model.path=nowhere"],
            "drafter.drafter.model.path is 'nowhere'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_clear_line(tiny, tmp_path, monkeypatch, capfd, wrong, says):
    if wrong[0] in COST_NO_MODEL:
        monkeypatch.setattr(builders, "build_target", lambda cfg: pytest.fail("the target was loaded"))
    with pytest.raises(SystemExit) as stopped:
        run(measure, monkeypatch, capfd, *tiny, "drafter=prompt_lookup", *wrong, f"hydra.run.dir={tmp_path}")
    # Hydra repeats the overrides before the error and names a variable after it; neither explains anything.
    echo = ("Error executing job with overrides", "Set the environment")
    shown = [line for line in capfd.readouterr().err.splitlines() if line.strip() and not line.startswith(echo)]
    assert stopped.value.code == 1
    assert says in "\n".join(shown), shown
    assert "Traceback" not in shown and (len(shown) == 1 or "drafter=" in wrong[0] or "nonsense" in wrong[0]), shown


@pytest.mark.slow
def test_a_drafter_that_fails_does_not_take_the_others_with_it(tiny, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(PromptLookup, "propose", lambda *arguments: 1 / 0)
    with pytest.raises(SystemExit):
        run(compare, monkeypatch, capfd, *tiny, *fitted_to(tiny), "temperatures=[0]",
            f"hydra.run.dir={tmp_path}")  # fmt: skip
    assert {record.point["drafter"] for record in load_records(tmp_path)} == {
        "small_transformer", "medusa", "layer_skip", "ngram", "corpus_unigram", "uniform_random",
    }  # fmt: skip
    (error,) = tmp_path.rglob("error.json")
    assert "ZeroDivisionError" in json.loads(error.read_text())["error"]
    assert "small_transformer" in capfd.readouterr().out


@pytest.mark.slow
def test_options_tell_the_points_of_a_sweep_apart(tiny, tmp_path, monkeypatch, capfd):
    run(measure, monkeypatch, capfd, "-m", *tiny, "drafter=prompt_lookup", "drafter.max_ngram=1,2", "tracker=jsonl",
        f"hydra.sweep.dir={tmp_path}")  # fmt: skip
    records = load_records(tmp_path)
    assert len({record.name for record in records}) == 2
    (group,) = group_records(records)
    assert sorted(group.labels) == ["prompt_lookup max_ngram=1", "prompt_lookup max_ngram=2"]


@pytest.mark.slow
def test_points_of_two_trainings_or_two_rules_can_be_told_apart(tiny, tmp_path, monkeypatch, capfd):
    heads = Path(folder_of(tiny)) / "medusa"
    shutil.copytree(heads, tmp_path / "other_heads")
    run(measure, monkeypatch, capfd, "-m", *tiny, "drafter=medusa", f"drafter.path={heads},{tmp_path}/other_heads",
        "verifier=tree_walk,k_seq", "tracker=jsonl", "gamma.gamma=2",
        f"hydra.sweep.dir={tmp_path / 'sweep'}")  # fmt: skip
    records = load_records(tmp_path / "sweep")
    assert {record.name for record in records} == {
        f"medusa-path-{path}-T1-{rule}-g2" for path in ("medusa", "other_heads") for rule in ("tree_walk", "k_seq")
    }
    (group,) = group_records(records)
    assert len(set(group.labels)) == 4


@pytest.mark.slow
def test_another_tokenizer_is_refused(tiny, tmp_path, monkeypatch, capfd):
    other = save_tiny(tmp_path / "other", vocabulary=40)
    with pytest.raises(SystemExit):
        run(measure, monkeypatch, capfd, *tiny, "drafter=small_transformer", f"drafter.model.path={other}",
            f"hydra.run.dir={tmp_path / 'run'}")  # fmt: skip
    assert "tokenizer differs" in capfd.readouterr().err


@pytest.mark.slow
def test_a_point_that_fails_keeps_what_was_recorded(tiny, tmp_path, monkeypatch, capfd):
    """NaN logits in the middle of a run: the error is a line, and the prompts before it and error.json remain."""
    forward, calls, last_good = CachedLM.forward, itertools.count(), 10**9

    def failing(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        return output if next(calls) < last_good else replace(output, logits=output.logits * torch.nan)

    monkeypatch.setattr(CachedLM, "forward", failing)
    # Parts are timed in the first of two repeats only, so that the last passes are those of a generation.
    point = [*tiny, "drafter=prompt_lookup", "gamma.gamma=2", "repeats=2"]
    run(measure, monkeypatch, capfd, *point, f"hydra.run.dir={tmp_path / 'whole'}")
    last_good, calls = next(calls) - 5, itertools.count()  # fails while the last of three prompts is timed
    with pytest.raises(SystemExit):
        run(measure, monkeypatch, capfd, *point, f"hydra.run.dir={tmp_path / 'broken'}")
    assert "NaN" in capfd.readouterr().err
    (error,) = tmp_path.rglob("error.json")
    assert json.loads(error.read_text())["point"]["drafter"] == "prompt_lookup"
    assert len((error.parent / "prompts.jsonl").read_text().splitlines()) == 2
    assert not list((tmp_path / "broken").rglob("record.json"))


@pytest.mark.slow
@pytest.mark.parametrize("study", [path.stem for path in STUDIES])
def test_every_study_runs(tiny, tmp_path, monkeypatch, capfd, study):
    """Each named sweep, on tiny models, with few of its values: adding a yaml adds its test."""
    checked_arguments("measure", ["-m", f"study={study}"])  # all values of groups
    folder = folder_of(tiny)
    monkeypatch.setattr(resolvers, "ZOO", Path(folder))
    resolvers.register_resolvers()  # other tests put theirs in its place
    monkeypatch.setattr(StandardLibrary, "__init__", _tiny_library(StandardLibrary.__init__, folder))
    monkeypatch.chdir(tmp_path)
    for task in ("translation", "summaries"):
        (tmp_path / "outputs" / f"larger_{task}").mkdir(parents=True)
        (tmp_path / "outputs" / f"larger_{task}" / "models").symlink_to(Path(folder) / task)
    run(measure, monkeypatch, capfd, "-m", *tiny, f"study={study}", "prompts.count=1", "repeats=1", "tracker=jsonl",
        f"hydra.sweep.dir={tmp_path}", *fitting(study))  # fmt: skip
    records = load_records(tmp_path)
    assert len(records) == len(list(tmp_path.glob("[0-9]*"))) > 1
    assert {record.study for record in records} == {study}


def fitting(study: str) -> list[str]:
    """FITTING, and overrides that leave the ends of the other values that a study sweeps.

    Of numbers the last one is left, if another option still has several values.
    """
    own = ["prompts=jsonl", *FITTING.get(study, [])]
    fixed = {override.partition("=")[0] for override in own}
    params = OmegaConf.to_container(OmegaConf.load(CONF / "study" / f"{study}.yaml").hydra.sweeper.params)
    swept = {key: str(values) for key, values in params.items() if key not in fixed and "," in str(values)}
    plain = {key: values.split(",") for key, values in swept.items() if not re.search(r"[\[({'\"]", values)}
    numbers = [key for key, values in plain.items() if all(re.fullmatch(r"[\d.]+", value) for value in values)]
    if len(numbers) == len(swept):
        numbers = numbers[1:]  # one option keeps two values
    ends = {key: values[-1:] if key in numbers else [values[0], values[-1]] for key, values in plain.items()}
    return [*own, *(f"{key}={','.join(values)}" for key, values in ends.items())]


def _tiny_library(init, tiny_folder):
    return lambda self, *, split, folder: init(self, split=split, folder=tiny_folder)


def test_every_yaml_says_what_it_is_and_how_to_use_it():
    for path in CONF.glob("**/*.yaml"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("# @package")]
        assert lines[0].startswith("# ") and lines[1].startswith("# python -m experiments."), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "flags", "key"),
    [
        (measure, [], "hydra.run.dir"),
        (measure, ["-m"], "hydra.sweep.dir"),
        (compare, [], "hydra.run.dir"),
        (train, [], "folder"),
    ],
    ids=["measure", "sweep", "compare", "train"],
)
@pytest.mark.parametrize("place", ["a file", "/proc"])
def test_a_folder_that_cannot_be_written_to_is_one_line(monkeypatch, capsys, tmp_path, command, flags, key, place):
    """Not even root writes below a file, or to /proc."""
    (tmp_path / "a file").touch()
    folder = tmp_path / place / "x"  # an absolute place replaces what is before it
    monkeypatch.setattr(sys, "argv", ["command", *flags, f'{key}="{folder}"'])
    with pytest.raises(SystemExit) as exit:
        command.main()
    shown = capsys.readouterr().err.strip()
    assert exit.value.code == 1 and len(shown.splitlines()) == 1
    assert f"{key} is {folder}, and {folder.parent} cannot be written to" in shown
