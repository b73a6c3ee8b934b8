"""Command lines with mistakes in keys, groups and structure: one line with the key to change, and no folder."""

import sys
from pathlib import Path

import pytest

from experiments import compare, measure
from experiments.config.builders import register_resolvers
from experiments.config.command import remove_if_unused
from experiments.config.command_line import OverrideError, checked_arguments

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
    # choices
    ("measure", ["drafter=medsa"], "drafter is 'medsa'; did you mean medusa? allowed: corpus_unigram, "),
    ("measure", ["drafter=telepathy"], "drafter is 'telepathy'; allowed: corpus_unigram, "),
    ("measure", ["drafter=null"], "drafter is 'null'; allowed: "),
    ("measure", ["-m", "drafter=ngram,medsa"], "drafter is 'medsa'; did you mean medusa?"),
    ("measure", ["tracker=wandbb"], "tracker is 'wandbb'; did you mean wandb? allowed: jsonl, wandb"),
    ("measure", ["gamma={a:1}"], "gamma is \"{'a': 1}\"; allowed: bandit, "),
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
    ("measure", ["+study=gamma"], "study has a choice already; set study=gamma without +"),
    ("measure", ["+max_new_tokens=4"], "max_new_tokens has a value already; set max_new_tokens=4 without +"),
    ("measure", ["+suite=all"], "+suite=all sets drafters, no option of measure"),
    ("measure", ["~gamma"], "gamma cannot be removed; set gamma=CHOICE: bandit, "),
    ("measure", ["training=medusa"], "training is no part of measure; allowed: "),
    ("compare", ["~drafter@drafters.medusaa"], "drafter@drafters.medusaa is no part of compare; allowed: "),
    ("measure", ["target.generation.top_k=5"], "target.generation is 'model', without options; to set some, "),
    # syntax
    ("measure", ["--gamma=4"], "--gamma is no flag; set an option without dashes: gamma=4"),
    ("measure", ["--multrun"], "--multrun is no flag; did you mean --multirun?"),
    ("measure", ["--target"], "--target has no path; allowed: --target FOLDER, or a hub name"),
    ("compare", ["--target", "--draft", "x"], "--target has no path; "),
    ("measure", ["gamma 4"], "'gamma 4' is no KEY=VALUE"),
    ("measure", ["=3"], "'=3' is no KEY=VALUE"),
    ("measure", ["seed=(3"], "'seed=(3' cannot be parsed; quote its value"),
    ("measure", ["target.path=a,b"], "target.path=a,b has several values; add -m"),
]


@pytest.mark.parametrize(("config", "arguments", "says"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_ends_in_one_line(config: str, arguments: list[str], says: str) -> None:
    with pytest.raises(OverrideError) as error:
        checked_arguments(config, arguments)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("config", "arguments", "written_out"),
    [
        ("measure", ["gamma=4"], ["gamma.gamma=4"]),
        ("measure", ["sampling=0.7", "prompts=10"], ["sampling.temperature=0.7", "prompts.count=10"]),
        ("measure", ["-m", "gamma=1,2,4"], ["-m", "gamma.gamma=1,2,4"]),
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
        ("search", ["+search_space.drafter.order=[1,2]"], ["+search_space.drafter.order=[1,2]"]),
        ("measure", ["+mine=ngram", "stop_strings=['${mine}']"], ["+mine=ngram", "stop_strings=['${mine}']"]),
        ("measure", ["--help", "xyzzy=1"], ["--help", "xyzzy=1"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_shorthands_are_written_out_and_others_stay(config: str, arguments: list[str], written_out: list[str]) -> None:
    assert checked_arguments(config, arguments) == written_out


@pytest.mark.parametrize(
    ("main", "arguments", "says"),
    [
        (measure.main, ["+temperature=0"], "sampling.temperature"),
        (compare.main, ["max_new_tokens=0"], "max_new_tokens"),
    ],
    ids=["key", "value"],
)
def test_a_failed_command_leaves_no_folder(
    main, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["command", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    error = capfd.readouterr().err
    assert says in error and error.count("\n") == 1 and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_users_own_has_further_choices(tmp_path: Path) -> None:
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter" / "mine.yaml").write_text("_target_: drafters.ngram.NGram\norder: 3\n")
    where = f"hydra.searchpath=[file://{tmp_path}]"
    for more in ([where], ["--config-dir", str(tmp_path)]):
        assert checked_arguments("measure", [*more, "drafter=mine", "drafter.order=4"])[-2:] == [
            "drafter=mine",
            "drafter.order=4",
        ]
        with pytest.raises(OverrideError, match=r"drafter\.ordre is no option of measure; did you mean drafter\.order"):
            checked_arguments("measure", [*more, "drafter=mine", "drafter.ordre=4"])
        with pytest.raises(OverrideError, match=r"measure cannot be composed: .*drafter/yours"):
            checked_arguments("measure", [*more, "drafter=yours"])


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
