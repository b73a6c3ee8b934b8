"""The search for the fastest settings: what is tried, what is ended early, and what a kill leaves."""

import json
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from experiments import search
from experiments.results.records import load_records
from experiments.tracking.tracker import Point
from experiments.tuning.optuna_study import DATABASE
from tests.support.tiny_pair import tiny_pair


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a search among two drafters, on two short prompts."""
    return [
        *tiny_pair(tmp_path_factory.mktemp("tiny"), "def ab(x):", "z"), "max_new_tokens=6", "repeats=1",
        "tracker=jsonl", "engine.compile=false", "search_space.drafter=[prompt_lookup,uniform_random]",
    ]  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["search", *arguments])
    search.main()


def study_in(folder: Path) -> optuna.Study:
    return optuna.load_study(study_name=search.STUDY, storage=f"sqlite:///{folder / DATABASE}")


@pytest.mark.slow
def test_trials_are_measured_points_and_go_on_after_a_kill(tiny, tmp_path, monkeypatch, capfd):
    run(monkeypatch, *tiny, f"folder={tmp_path}", "trials=2", f"hydra.run.dir={tmp_path}")
    killed = study_in(tmp_path).ask({"drafter": optuna.distributions.CategoricalDistribution(
        ["prompt_lookup", "uniform_random"])})  # fmt: skip
    killed.suggest_int("gamma.gamma", 1, 12)
    killed.suggest_float("sampling.temperature", 0.0, 1.0, step=0.1)
    capfd.readouterr()
    run(monkeypatch, *tiny, f"folder={tmp_path}", "trials=4", f"hydra.run.dir={tmp_path}")

    trials = study_in(tmp_path).get_trials()
    whole, failed = TrialState.COMPLETE, TrialState.FAIL
    assert [trial.state for trial in trials] == [whole, whole, failed, whole, whole]
    assert trials[3].params == killed.params  # what the kill took is measured first
    assert len(load_records(tmp_path)) == 4 and not list(tmp_path.rglob("error.json"))
    for trial in (trials[place] for place in (0, 1, 3, 4)):
        (record,) = load_records(tmp_path / f"trial-{trial.number:04d}")
        point = record.point
        assert {"drafter": point["drafter"], "gamma.gamma": point["gamma"]} == {
            key: trial.params[key] for key in ("drafter", "gamma.gamma")
        }
        assert point["temperature"] == pytest.approx(trial.params["sampling.temperature"])
        assert record.metrics["speedup/measured"] == trial.value and record.study == "search"
        assert "search_space" not in record.config

    best = max((trial for trial in trials if trial.value), key=lambda trial: trial.value)
    found = json.loads((tmp_path / "best.json").read_text())
    assert found["settings"] == best.params and f"gamma.gamma={best.params['gamma.gamma']}" in found["command"]
    assert (tmp_path / "trials.md").read_text().count("measured") == 4
    shown = capfd.readouterr().out
    assert "The fastest first" in shown and f"The best: trial {best.number}" in shown
    with pytest.raises(SystemExit):
        run(monkeypatch, *tiny, f"folder={tmp_path}", "seed=1", f"hydra.run.dir={tmp_path}")
    assert "holds a search with another seed" in capfd.readouterr().err


@pytest.mark.slow
def test_a_trial_that_fails_is_on_the_disk_and_the_search_goes_on(tiny, tmp_path, monkeypatch, capfd):
    with pytest.raises(SystemExit):
        run(monkeypatch, *tiny, f"folder={tmp_path}", "trials=2", "max_new_tokens=200", f"hydra.run.dir={tmp_path}")
    shown = capfd.readouterr().err
    assert shown.count("failed: ValueError: max_new_tokens is 200") == 2 and "no trial was measured to its end" in shown
    assert len(list(tmp_path.glob("trial-*/error.json"))) == 2
    assert [trial.state for trial in study_in(tmp_path).get_trials()] == [TrialState.FAIL] * 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("search_space.drafter=[]", "search_space.drafter is []"),
        ("search_space.drafter=7", "search_space.drafter is 7"),
        ("search_space.drafter=[ngram,nosuch]", "search_space: drafter is 'nosuch'; allowed: "),
        (
            "+search_space={gamma.gama: {low: 1, high: 2}}",
            "search_space: gamma.gama is no option of search; did you mean",
        ),
        ("trials=0", "trials is 0"),
        ("startup_trials=-1", "startup_trials is -1"),
        ("gamma.gamma=3", "gamma.gamma is set, and search_space.gamma.gamma searches for it"),
    ],
)
def test_a_wrong_search_costs_no_trial(tiny, tmp_path, monkeypatch, capfd, wrong, says):
    with pytest.raises(SystemExit):
        run(monkeypatch, *tiny, f"folder={tmp_path / 'search'}", wrong, f"hydra.run.dir={tmp_path}")
    assert says in capfd.readouterr().err and not (tmp_path / "search").exists()


def test_a_hopeless_trial_is_ended_early(tmp_path):
    """Ten prompts at half the speed of four earlier trials: the third is the last, and no error is left."""
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=search.LEAST_PROMPTS)
    study = optuna.create_study(direction="maximize", pruner=pruner)

    def measured(speed: float) -> int:
        trial = study.ask()
        files = search.EndedEarly(trial)
        files.start(Point(folder=tmp_path, name=str(trial.number), study="search", settings={}, config={}))
        try:
            for _ in range(10):
                files.log_prompt({"seconds": 1.0, "baseline_seconds": speed})
            study.tell(trial, speed)
        except optuna.TrialPruned as pruned:
            files.fail(pruned)
            study.tell(trial, state=TrialState.PRUNED)
        rows: list[Any] = (tmp_path / str(trial.number) / "prompts.jsonl").read_text().splitlines()
        return len(rows)

    assert [measured(speed) for speed in (2.0, 2.2, 1.8, 2.1, 1.0, 2.3)] == [10, 10, 10, 10, 3, 10]
    assert not list(tmp_path.rglob("error.json"))
