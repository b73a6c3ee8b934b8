"""The acceptance: bounds, failures, budgets, ended processes, exit status and table."""

import json
import math
import time
from pathlib import Path

import pytest

from experiments.gpu import all_steps
from experiments.gpu.all_steps import STEP_FAILED, accept, run_all
from experiments.gpu.findings import FAILED, HOLDS, MEASURED, NOT_MEASURED, Findings, StepResult, load, store
from experiments.gpu.step_process import EVERY_GPU, bounds_of
from experiments.gpu.table import markdown

BOUNDS = {"bandwidth": {"at_least": 4.2}, "efficiency": {"at_least": 0.9, "at_most": 1.02}, "8B: v": {"at_most": 1.1}}


def findings(*, on_gpu: bool = True, seconds: float = 60, saved: list | None = None) -> Findings:
    save = (lambda result: saved.append(len(result.checks))) if saved is not None else lambda result: None
    return Findings(bounds=BOUNDS, on_gpu=on_gpu, deadline=time.time() + seconds, save=save)


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("bandwidth", 4.2, HOLDS),
        ("bandwidth", 4.19, FAILED),
        ("1B, medusa: efficiency", 0.9, HOLDS),
        ("1B, medusa: efficiency", 1.03, FAILED),
        ("1B, medusa: efficiency", math.nan, FAILED),
        ("8B: v", 1.2, FAILED),
        ("1B: v", 1.2, MEASURED),
    ],
)
def test_a_number_is_judged_by_the_bound_of_its_name_or_its_quantity(name, value, verdict):
    found = findings()
    found.measure(name, value, "units")
    (check,) = found.result.checks
    assert check.verdict == verdict and (verdict == MEASURED) == (check.bound == "")


def test_without_a_gpu_no_number_holds_or_fails():
    found = findings(on_gpu=False)
    for name in ("bandwidth", "other"):
        found.measure(name, 1.0)
    assert [(check.verdict, check.measured) for check in found.result.checks] == [(NOT_MEASURED, "no GPU")] * 2
    assert found.result.failures == []


def test_bounds_of_a_device_are_added_to_those_of_every_gpu():
    bounds = {
        EVERY_GPU: {"speed": {"a": {"at_most": 1}, "b": {"at_most": 2}}},
        "H200": {"speed": {"b": {"at_most": 3}}},
    }
    assert bounds_of(bounds, "speed", "H200") == {"a": {"at_most": 1}, "b": {"at_most": 3}}
    assert bounds_of(bounds, "speed", "another") == bounds[EVERY_GPU]["speed"]
    assert bounds_of(bounds, "facts", "another") == {}


def fail_with(message: str):
    raise RuntimeError(message)


def test_a_part_that_fails_fails_alone_and_one_that_has_no_time_is_left_out():
    saved: list[int] = []
    found = findings(saved=saved)
    found.attempt("medusa", lambda: fail_with("no such file\nmore"))
    found.attempt("ngram", lambda: found.require("ngram", True, "0 differ", "equal"))
    assert [check.verdict for check in found.result.checks] == [FAILED, HOLDS] and saved == [1, 2]
    assert found.result.failures == ["FAILED       medusa: RuntimeError: no such file (no error)"]
    assert "fail_with" in found.result.errors["medusa"]
    late = findings(seconds=-1)
    late.attempt("eagle", lambda: fail_with("it must not run"))
    assert late.result.left_out == ["eagle"] and late.result.checks == []


@pytest.mark.parametrize("error", ["CUDA error: an illegal memory access", "Triton Error [CUDA]: misaligned address"])
def test_nothing_more_runs_in_a_process_whose_gpu_failed(error):
    found = findings()
    found.attempt("graphs", lambda: fail_with(error))
    found.attempt("later", lambda: fail_with("it must not run"))
    assert found.gpu_failed and list(found.result.errors) == ["graphs"] and found.result.left_out == ["later"]


def test_a_part_begins_only_if_the_longest_one_so_far_would_end_in_time(monkeypatch):
    now, ran = [1000.0], []

    def part(seconds):
        ran.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("experiments.gpu.findings.time.time", lambda: now[0])
    found = Findings(bounds={}, on_gpu=True, deadline=1100.0, save=lambda result: None)
    for seconds in (90.0, 20.0, 1.0):  # of the 100 seconds, and the 60 that an end may take longer
        found.attempt(str(seconds), lambda seconds=seconds: part(seconds))
    assert ran == [90.0] and found.result.left_out == ["20.0", "1.0"]


def begun(folder: Path, steps: list[str]) -> None:
    store({"settings": {"steps": steps}, "begun": time.time(), "device": "", "steps": {}}, folder)


def ending(folder: Path, step: str, found: Findings) -> None:
    """Keep a step's result, as its process does."""
    record = load(folder)
    record["steps"][step], record["device"] = found.result, "a GPU"
    found.result.seconds = 1.0
    store(record, folder)


def test_later_steps_run_after_one_that_fails_and_one_whose_process_ends(tmp_path, capsys):
    steps = ["facts", "exactness", "graphs", "speed"]
    begun(tmp_path, steps)
    turns = []

    def run(folder: Path) -> int:
        for step in [each for each in steps if each not in load(folder)["steps"]]:
            turns.append(step)
            found = findings()
            if step == "exactness":
                found.fail(step, RuntimeError("no model"))
                ending(folder, step, found)
                return STEP_FAILED
            if step == "graphs":  # it hangs, or its process crashes
                return -11
            found.measure("bandwidth", 5.0)
            ending(folder, step, found)
        return 0

    run_all(steps, tmp_path, run)
    assert turns == steps
    results = load(tmp_path)["steps"]
    assert {step: len(result.failures) for step, result in results.items()} == {
        "facts": 0, "exactness": 1, "graphs": 1, "speed": 0,
    }  # fmt: skip
    assert "its process ended with status -11" in results["graphs"].failures[0]
    capsys.readouterr()
    assert all_steps.report(tmp_path) == 1
    shown = capsys.readouterr().out
    assert "exactness: FAILED" in shown and "graphs: FAILED" in shown and "2 failed, 0 parts were left out" in shown
    assert "| graphs | graphs | its process ended" in (tmp_path / all_steps.PAGE).read_text()


def test_a_device_that_is_not_there_ends_in_one_error(tmp_path):
    begun(tmp_path, ["facts", "speed"])
    with pytest.raises(ChildProcessError, match="no step began: their process ended with status 1"):
        run_all(["facts", "speed"], tmp_path, lambda folder: 1)


def settings(**changes):
    return {"results": None, "steps": ["facts"], "sizes": "auto", **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": ["fact"]}, r"steps is \['fact'\]; allowed: a list of facts, exactness"),
        ({"steps": []}, "steps is"),
        ({"steps": ["facts", "facts"]}, "each at most once"),
        ({"sizes": "small"}, "sizes is 'small'; allowed: auto, full, miniature"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_begins(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        accept(settings(**changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_print_the_table_of_an_earlier_run(tmp_path, capsys):
    found = findings()
    found.note(versions={"torch": "2.13"}, machine={"driver": "580"})
    found.measure("bandwidth", 4.0, "TB/s")
    found.require("a|b", True, "x" * 200, "equal")
    found.result.left_out.append("8B: small_transformer")
    begun(tmp_path, ["facts"])
    ending(tmp_path, "facts", found)
    capsys.readouterr()
    assert accept(settings(results=str(tmp_path)), tmp_path) == 0
    head, _, heading, rule, *rows = capsys.readouterr().out.strip().splitlines()
    assert head == "a GPU, torch 2.13, driver 580; 1 s."
    assert (heading, rule) == ("| step | check | measured | bound | verdict |", "| --- | --- | --- | --- | --- |")
    assert rows[0] == "| facts | bandwidth | 4 TB/s | at least 4.2 | FAILED |"
    assert "a\\|b" in rows[1] and max(len(cell) for cell in rows[1].split(" | ")) <= 160
    assert rows[2] == "| facts | 8B: small_transformer |  |  | left out |"
    with pytest.raises(FileNotFoundError, match="a folder without"):
        accept(settings(results=str(tmp_path / "none")), tmp_path)


def test_a_number_that_no_gpu_measured_is_no_number_in_the_table(tmp_path):
    found = findings(on_gpu=False)
    found.measure("bandwidth", 4.0, "TB/s")
    table = markdown({"device": "cpu", "steps": {"facts": found.result}})
    assert "| facts | bandwidth |  | at least 4.2 | not measured: no GPU |" in table and "4 TB/s" not in table


def test_a_record_is_read_as_it_was_written(tmp_path):
    found = findings()
    found.measure("bandwidth", 5.0)
    record = {"settings": {}, "begun": 1.0, "device": "x", "steps": {"facts": found.result}}
    store(record, tmp_path)
    assert load(tmp_path) == record and isinstance(load(tmp_path)["steps"]["facts"], StepResult)
    assert [path.name for path in tmp_path.iterdir()] == ["gpu_acceptance.json"]
    assert json.loads((tmp_path / "gpu_acceptance.json").read_text())["steps"]["facts"]["checks"][0]["verdict"] == HOLDS
