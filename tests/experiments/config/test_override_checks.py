"""Command lines with mistakes in keys, groups and structure: one line with the key to change, and no folder."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from experiments.config.command import remove_if_unused, run_command
from experiments.config.command_line import checked_arguments
from experiments.config.help_text import CONF
from experiments.config.parsed_overrides import OverrideError
from experiments.config.resolvers import register_resolvers

register_resolvers()

MISTAKES = [
    # unknown keys
    ("measure", ["+temperature=0"], "temperature is no option of measure; did you mean sampling.temperature?"),
    ("measure", ["temperature=0"], "temperature is no option of measure; did you mean sampling.temperature?"),
    ("measure", ["max_tokens=5"], "max_tokens is no option of measure; did you mean max_new_tokens?"),
    ("measure", ["+max_tokens=5"], "max_tokens is no option of measure; did you mean max_new_tokens?"),
    ("measure", ["gama=4"], "gama is no option of measure; did you mean gamma?"),
    ("measure", ["sampling.topp=1"], "sampling.topp is no option of measure; did you mean sampling.top_p?"),
    ("measure", ["samplng.top_p=1"], "samplng.top_p is no option of measure; did you mean sampling.top_p?"),
    ("measure", ["drafter.modl.path=x"], "drafter.modl.path is no option of measure; did you mean drafter.model.path?"),
    ("measure", ["engine.compil=true"], "engine.compil is no option of measure; did you mean engine.compile?"),
    ("measure", ["+engine.graphs=true"], "engine.graphs is no option of measure; see python -m"),
    (
        "measure",
        ["gamma.candidates=[0,2]"],
        "gamma.candidates is no option of gamma=fixed; select gamma=auto",
    ),
    (
        "measure",
        ["drafter.path=x"],
        "drafter.path is no option of drafter=small_transformer; did you mean drafter.model.path? Or select",
    ),
    ("measure", ["batchsize=4"], "batchsize is no option of measure; did you mean batch_size?"),
    ("measure", ["xyzzy=4"], "xyzzy is no option of measure; see python -m experiments.measure --help"),
    ("measure", ["~xyzzy"], "xyzzy is no option of measure; see python -m experiments.measure --help"),
    ("compare", ["drafter.order=3"], "drafter.order is no option of compare; did you mean drafters.ngram.order?"),
    ("compare", ["drafter.model.pth=x"], "did you mean drafters.small_transformer.model.path?"),
    ("compare", ["drafters=[ngram]", "drafter.model.path=x"], "no drafter of drafters has a draft model; add one"),
    ("compare", ["drafters.ngram.orde=3"], "did you mean drafters.ngram.order?"),
    ("compare", ["sampling.temperatur=0"], "did you mean sampling.temperature?"),
    ("train", ["training.lr=0.1"], "training.lr is no option of train; "),
    ("generate", ["promt=x"], "promt is no option of generate; did you mean prompt?"),
    ("measure", ["++max_tokens=5"], "max_tokens is no option of measure; did you mean max_new_tokens?"),
    ("measure", ["++x.y.z=5"], "x.y.z is no option of measure; see python -m experiments.measure --help"),
    ("measure", ["+sampling.topp=1"], "sampling.topp is no option of measure; did you mean sampling.top_p?"),
    ("compare", ["++drafters.ngram.orde=3"], "did you mean drafters.ngram.order?"),
    ("measure", ["+drafters.ngram.order=3"], "drafters.ngram.order is no option of measure"),
    ("measure", ["+search_space.x=1"], "search_space.x is no option of measure"),
    ("measure", ["engine={compil: false}"], "engine.compil is no option of measure; did you mean engine.compile?"),
    ("measure", ["+drafter._targt_=x"], "drafter._targt_ belongs to the yaml; "),
    ("measure", ["+drafter._args_=[1]"], "drafter._args_ belongs to the yaml; "),
    ("measure", ["~drafter._target_"], "drafter._target_ belongs to the yaml; "),
    # choices
    ("measure", ["drafter=medsa"], "drafter is 'medsa'; did you mean medusa? allowed: corpus_unigram, "),
    ("measure", ["drafter=telepathy"], "drafter is 'telepathy'; allowed: corpus_unigram, "),
    ("measure", ["drafter=null"], "drafter is 'null'; allowed: "),
    ("measure", ["-m", "drafter=ngram,medsa"], "drafter is 'medsa'; did you mean medusa?"),
    ("measure", ["tracker=wandbb"], "tracker is 'wandbb'; did you mean wandb? allowed: jsonl, wandb"),
    ("measure", ["gamma={a:1}"], "gamma is \"{'a': 1}\"; allowed: auto, "),
    ("measure", ["+gamma=heuristc"], "gamma is 'heuristc'; did you mean heuristic?"),
    ("compare", ["+suite=al"], "suite is 'al'; did you mean all? allowed: all, translation"),
    ("compare", ["drafters=[ngram,medsa]"], "drafters is 'medsa'; did you mean medusa?"),
    ("compare", ["+drafter@drafters.mine=mine"], "drafter@drafters.mine is 'mine'; allowed: "),
    ("train", ["training=medus"], "training is 'medus'; did you mean medusa?"),
    # structure
    ("measure", ["study=gamma"], "study=gamma is a sweep; add -m: python -m experiments.measure -m study=gamma"),
    ("measure", ["gamma=1,2"], "gamma.gamma=1,2 has several values; add -m to sweep over them"),
    ("measure", ["drafter=ngram,medusa"], "drafter=ngram,medusa has several values; add -m"),
    ("measure", ["target=[zoo,pretrained]"], "target=[zoo,pretrained] selects several; allowed: one of pretrained, "),
    ("measure", ["-m", "study=medusa_trees", "drafter.node=1"], "did you mean drafter.nodes?"),
    ("measure", ["-m", "drafter=ngram,medusa", "drafter.nodes=4"], "drafter=medusa and not of drafter=ngram, and the"),
    ("measure", ["-m", "study=gamma", "gamma=auto"], "study=gamma sweeps gamma.gamma, which gamma=auto lacks; choose"),
    ("measure", ["-m", "study=hierarchy", "drafter=ngram"], "study=hierarchy sets drafter.model, which drafter=ngram"),
    ("measure", ["-m", "study=distillation"], "study=distillation is a study of train: python -m experiments.train -m"),
    ("measure", ["prompts=englsh", "drafter=medusa"], "prompts is 'englsh'; did you mean english?"),
    ("compare", ["drafters=[]"], "drafters is []; allowed: one or more of corpus_unigram, "),
    ("compare", ["drafters=[ngram]", "drafter=medusa"], "drafter and drafters are both set; leave out one"),
    ("compare", ["drafters=[ngram]", "drafters.medusa.nodes=4"], "medusa is none of drafters=['ngram']; add it there"),
    ("search", ["search_space.gamma.gamma.low=20"], "allowed: '+search_space={KEY: {low: 1, high: 8}}'"),
    ("train", ["drafter=ngram", "training.window=3"], "no option of train; no training is selected; add training="),
    ("measure", ["+study=gamma"], "study has a choice already; set study=gamma without +"),
    ("measure", ["+max_new_tokens=4"], "max_new_tokens has a value already; set max_new_tokens=4 without +"),
    ("measure", ["+suite=all"], "+suite=all sets drafters, no option of measure"),
    ("measure", ["~gamma"], "gamma cannot be removed; set gamma=CHOICE: auto, "),
    ("measure", ["training=medusa"], "training is no part of measure; allowed: "),
    ("compare", ["study=gamma"], "study=gamma is a study of measure: python -m experiments.measure -m study=gamma"),
    ("compare", ["+study=gamma", "drafters=[ngram]"], "study=gamma is a study of measure: "),
    ("compare", ["~drafter@drafters.medusaa"], "drafter@drafters.medusaa is no part of compare; allowed: "),
    ("measure", ["target.generation.top_k=5"], "target.generation is 'model', without options; to set some, "),
    # syntax
    ("measure", ["--gamma=4"], "--gamma is no flag; set an option without dashes: gamma=4"),
    ("measure", ["--multrun"], "--multrun is no flag; did you mean --multirun?"),
    ("measure", ["--target"], "--target has no path; allowed: --target FOLDER, or a hub name"),
    ("compare", ["--target", "--draft", "x"], "--target has no path; "),
    ("measure", ["--targt=x"], "--targt is no flag; did you mean --target?"),
    ("measure", ["-x"], "unrecognized arguments: -x"),
    ("measure", ["-m=3"], "argument --multirun/-m: ignored explicit argument '3'"),
    ("measure", ["--config-name"], "argument --config-name/-cn: expected one argument"),
    ("measure", ["+=3"], "'+=3' is no KEY=VALUE"),
    ("measure", ["~"], "'~' is no KEY=VALUE"),
    ("measure", ["gamma 4"], "'gamma 4' is no KEY=VALUE"),
    ("measure", ["=3"], "'=3' is no KEY=VALUE"),
    ("measure", ["seed=(3"], "'seed=(3' cannot be parsed; quote its value"),
    ("measure", ["target.path=a,b"], "target.path=a,b has several values; add -m"),
    # replaced parts
    ("measure", ["prompts.source=nowhere"], "set one of prompts.source.split, prompts.source.folder"),
    (
        "measure",
        ["engine=compiled"],
        "engine is 'compiled', which has no options of its own; set one of engine.compile",
    ),
    (
        "measure",
        ["prompts=texts", "prompts.source.texts=[a]", "prompts.source.texts={a: b}"],
        "prompts.source.texts={a: b} cannot be applied: ",
    ),
    ("measure", ["~engine", "engine.compile=false"], "engine.compile=false cannot be applied: "),
    # Hydra's own options
    ("measure", ["hydra.searchpath=[nowhere]"], "hydra.searchpath is 'nowhere', no such folder; allowed: "),
    (
        "measure",
        ["-m", "hydra/launcher=joblb", "seed=1,2"],
        "hydra/launcher is 'joblb'; did you mean joblib? allowed: ",
    ),
    ("measure", ["hydra.launcher.n_jobs=2"], "hydra.launcher.n_jobs is no option of Hydra"),
    ("measure", ["-m", "--cfg", "job"], "--multirun and --cfg exclude each other; leave one out"),
    # missing files
    ("measure", ["--config-name=measur"], "--config-name is 'measur'; did you mean measure? allowed: "),
    ("make_pair", ["--config-name=measure"], "--config-name is 'measure'; allowed: larger_summaries, "),
    ("measure", ["--config-dir=nowhere"], "--config-dir is 'nowhere', no such folder"),
    ("measure", ["--config-path=nowhere"], "--config-path would replace conf/; add a folder with --config-dir=FOLDER"),
]
# Mistakes that parts see, before a model is loaded.
WRONG_VALUES = [
    ("measure", ["gamma.gamma=-1"], "gamma.gamma is -1"),
    ("measure", ["max_new_tokens=abc"], "max_new_tokens is 'abc'"),
    ("measure", ["seed=${nowhere}"], "seed: Interpolation key 'nowhere' not found"),
    ("measure", ["device=abacus"], "device is 'abacus'"),
    ("measure", ["prompts=jsonl"], "prompts.source.path has no value yet"),
    ("measure", ["prompts=jsonl", "prompts.source.path=nowhere.jsonl"], "prompts.source.path is 'nowhere.jsonl'"),
    ("measure", ["target=pretrained"], "target.path has no value yet"),
    ("measure", ["drafter=ngram", "drafter.corpus=nowhere"], "drafter.corpus is 'nowhere'"),
    ("measure", ["drafter._target_=mine.Drafter"], "drafter._target_ is 'mine.Drafter', which cannot be imported"),
    ("measure", ["drafter._target_=drafters.ngram.Ngrm"], "'drafters.ngram' has no attribute 'Ngrm'"),
    ("measure", ["hydra.run.dir=/proc/x"], "hydra.run.dir is /proc/x, and /proc cannot be written to"),
    ("train", ["folder=/proc/x"], "folder is /proc/x, and /proc cannot be written to"),
    ("compare", ["records=nowhere"], "records is 'nowhere': no record.json there"),
    ("compare", ["compare_to=nowhere"], "compare_to is 'nowhere': no record.json there"),
    ("compare", ["publish=true"], "publish is true, and records is None"),
    ("compare", ["temperatures=[0,0.0]"], "temperatures is [0, 0.0]; allowed: each temperature once"),
    ("compare", ["temperatures=0"], "temperatures is 0; allowed: a list of numbers"),
    ("generate", ["prompt_file=nowhere.txt"], "nowhere.txt"),
    ("generate", ["prompt=x", "prompt_file=y"], "prompt and prompt_file are both set"),
    ("train", ["drafter=ngram"], "drafter is 'ngram', which is not trained"),
    ("check", [], "choose one or more of drafter=NAME, verifier=NAME"),
    ("check", ["gamma=4"], "gamma is '4'; allowed: auto, "),
]


def typed(command: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture) -> str:
    """The error of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", [command, *arguments])
    capfd.readouterr()
    with pytest.raises(SystemExit) as stopped:
        run_command(command)
    assert stopped.value.code == 1
    return capfd.readouterr().err


@pytest.mark.parametrize(("command", "arguments", "says"), MISTAKES + WRONG_VALUES, ids=lambda value: str(value)[:40])
def test_a_mistake_ends_in_one_line_and_leaves_no_folder(
    command: str,
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
) -> None:
    import_module(f"experiments.{command}")  # else a line says that this takes seconds
    monkeypatch.chdir(tmp_path)
    error = typed(command, arguments, monkeypatch, capfd)
    assert says in error and error.count("\n") == 1 and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_sixty_mistakes_are_typed_most_of_them_in_keys_and_structure() -> None:
    assert len(MISTAKES) >= 45 and len(MISTAKES + WRONG_VALUES) >= 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [each for each in MISTAKES if each[0] != "measure"][:6] + WRONG_VALUES[:2],
    ids=lambda value: str(value)[:40],
)
def test_a_mistake_from_a_shell_ends_in_two_lines_at_most(
    command: str, arguments: list[str], says: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{command}", *arguments], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(CONF.parent)},
    )  # fmt: skip
    assert done.returncode == 1 and not done.stdout
    assert says in done.stderr and len(done.stderr.splitlines()) <= 2 and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "arguments", "written_out"),
    [
        ("measure", ["gamma=4"], ["gamma.gamma=4"]),
        ("compare", ["gamma=4"], ["gamma=fixed", "gamma.gamma=4"]),  # where another policy is the default
        ("benchmark", ["gamma.gamma=2"], ["gamma=fixed", "gamma.gamma=2"]),
        ("compare", ["gamma=fixed_8", "gamma.gamma=6"], ["gamma=fixed_8", "gamma.gamma=6"]),
        ("generate", ["gamma.candidates=[0,2]"], ["gamma.candidates=[0,2]"]),
        ("measure", ["sampling=0.7", "prompts=10"], ["sampling.temperature=0.7", "prompts.count=10"]),
        ("measure", ["-m", "gamma=1,2,4"], ["-m", "gamma.gamma=1,2,4"]),
        (  # an option of the drafter that the study selects
            "measure",
            ["-m", "study=medusa_trees", "drafter.nodes=1,64"],
            ["-m", "study=medusa_trees", "drafter.nodes=1,64"],
        ),
        (  # Hydra would apply a single value before the study selects the drafter
            "measure",
            ["-m", "study=medusa_trees", "drafter.nodes=4"],
            ["-m", "study=medusa_trees", "drafter.nodes=choice(4)"],
        ),
        (  # a choice that the study makes as well
            "measure",
            ["-m", "study=paper_table2_larger", "+paper_task=larger_summaries"],
            ["-m", "study=paper_table2_larger", "+paper_task=larger_summaries"],
        ),
        (
            "measure",
            ["-m", "drafter=ngram,medusa", "gamma=range(1,4)"],
            ["-m", "drafter=ngram,medusa", "gamma.gamma=range(1,4)"],
        ),
        (
            "compare",
            ["drafters=[ngram,eagle,medusa,layer_skip,prompt_lookup,uniform_random,corpus_unigram]"],
            [
                "~drafter@drafters.small_transformer",
                "drafter@drafters.ngram=ngram",
                "+drafter@drafters.eagle=eagle",
                "drafter@drafters.medusa=medusa",
                "drafter@drafters.layer_skip=layer_skip",
                "drafter@drafters.prompt_lookup=prompt_lookup",
                "drafter@drafters.uniform_random=uniform_random",
                "drafter@drafters.corpus_unigram=corpus_unigram",
            ],
        ),
        (
            "compare",
            ["+suite=all", "drafter.model.path=a", "drafters.remote.drafter.model.path=b"],
            [
                "+suite=all",
                "drafters.small_transformer.model.path=a",
                "drafters.transformer_tree.model.path=a",
                "drafters.hierarchical.model.path=a",
                "drafters.online_small_transformer.drafter.model.path=a",
                "drafters.remote.drafter.model.path=b",
            ],
        ),
        (
            "benchmark",
            ["--target", "Qwen/Qwen3-8B", "--draft=my model"],
            ["target=pretrained", "target.path=Qwen/Qwen3-8B", "drafters.small_transformer.model.path='my model'"],
        ),
        ("measure", ["--draft", "x"], ["drafter.model.path=x"]),
        ("measure", ["+drafter.depth=1"], ["+drafter.depth=1"]),  # left to the constructor's own check
        ("measure", ["hydra.run.dir=/tmp/x", "stop_strings=[a,b]"], ["hydra.run.dir=/tmp/x", "stop_strings=[a,b]"]),
        ("measure", ["-m", "hydra/launcher=joblib", "seed=1,2"], ["-m", "hydra/launcher=joblib", "seed=1,2"]),
        (
            "measure",
            ["drafter=ngram", "~drafter.corpus", "+drafter.corpus=text"],
            ["drafter=ngram", "~drafter.corpus", "+drafter.corpus=text"],
        ),
        ("compare", ["+suite=all", "~drafters.medusa"], ["+suite=all", "~drafters.medusa"]),
        ("search", ["+search_space.threads=[1,2]"], ["+search_space.threads=[1,2]"]),
        ("measure", ["+mine=ngram", "stop_strings=['${mine}']"], ["+mine=ngram", "stop_strings=['${mine}']"]),
        ("measure", ["--help", "xyzzy=1"], ["--help", "xyzzy=1"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_shorthands_are_written_out_and_others_stay(config: str, arguments: list[str], written_out: list[str]) -> None:
    assert checked_arguments(config, arguments) == written_out


@pytest.mark.slow
def test_a_folder_of_the_users_own_has_further_choices(tmp_path: Path) -> None:
    (tmp_path / "drafter").mkdir()
    for name in ("mine", "ours"):
        (tmp_path / "drafter" / f"{name}.yaml").write_text("_target_: drafters.ngram.NGram\norder: 3\n")
    where = f"hydra.searchpath=[file://{tmp_path}]"
    for more, unknown in (
        ([where], r"measure cannot be composed: .*drafter/yours"),  # only Hydra knows its choices
        (["--config-dir", str(tmp_path)], r"drafter is 'yours'; did you mean ours\?"),
    ):
        assert checked_arguments("measure", [*more, "drafter=mine", "drafter.order=4"])[-2:] == [
            "drafter=mine",
            "drafter.order=4",
        ]
        with pytest.raises(OverrideError, match=r"drafter\.ordre is no option of measure; did you mean drafter\.order"):
            checked_arguments("measure", [*more, "drafter=mine", "drafter.ordre=4"])
        with pytest.raises(OverrideError, match=unknown):
            checked_arguments("measure", [*more, "drafter=yours"])


@pytest.mark.slow
def test_a_config_of_the_users_own_builds_on_a_commands(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [measure, _self_]\nrepeats: 1\n")
    own = ["--config-dir", str(tmp_path), "--config-name=mine"]
    assert checked_arguments("measure", [*own, "seed=3"]) == [*own, "seed=3"]
    with pytest.raises(OverrideError, match="gama is no option of mine; did you mean gamma"):
        checked_arguments("measure", [*own, "gama=3"])
    (tmp_path / "mine.yaml").write_text("defaults: [measure, _self_]\nrepeats: [\n")
    with pytest.raises(OverrideError, match=r"mine cannot be applied: while parsing .*mine\.yaml.*, line 3"):
        checked_arguments("measure", own)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '"x"'])
@pytest.mark.parametrize("key", ["records", "compare_to"])
def test_a_broken_record_is_named_in_one_line(
    key: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    import_module("experiments.compare")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/record.json").write_text(content)
    error = typed("compare", [f"{key}=run"], monkeypatch, capfd)
    assert f"{key} is 'run': run/record.json is not a record (" in error and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_with_results_stays(tmp_path: Path) -> None:
    for name in ("run/.hydra/config.yaml", "run/measure.log", "run/point/prompts.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    remove_if_unused(tmp_path / "run")
    assert (tmp_path / "run/point/prompts.jsonl").exists() and (tmp_path / "run/.hydra/config.yaml").exists()
    (tmp_path / "run/point/prompts.jsonl").unlink()
    (tmp_path / "run/measure.log").write_text("something was logged")
    remove_if_unused(tmp_path / "run")
    assert (tmp_path / "run/measure.log").exists()
