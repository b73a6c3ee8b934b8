"""The command `gpu_acceptance`: its options without Hydra, and all steps in miniature without optional packages."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hydra import compose, initialize
from omegaconf import OmegaConf

from experiments import gpu_acceptance
from experiments.gpu import plain_options
from experiments.gpu.all_steps import STEPS
from experiments.gpu.findings import FAILED, HOLDS, NOT_MEASURED, load
from experiments.gpu.parts import DRAFTERS, built, node_of
from experiments.gpu.plain_options import folder_of, run_plainly, settings_from
from experiments.proof.tiny_drafters import NAMES

ROOT = Path(gpu_acceptance.__file__).parents[1]
UNNEEDED = ("hydra", "omegaconf", "rich", "wandb", "matplotlib", "nltk", "scipy", "optuna", "jinja2", "datasets")
BLOCKER = f"import sys\nsys.modules.update(dict.fromkeys({UNNEEDED}))\n"


def composed(*overrides: str) -> dict:
    with initialize(version_base="1.3", config_path="../../../conf"):
        return OmegaConf.to_container(compose("gpu_acceptance", list(overrides)), resolve=True)


def test_options_without_hydra_are_those_with_it():
    arguments = ["steps=[facts]", "out=here", "full.speed.context=1"]
    with pytest.raises(ValueError, match=r"full\.speed\.context is no option"):
        settings_from(arguments)
    arguments[-1] = "full.speed.new_tokens=7"
    assert settings_from(arguments) == composed(*arguments)
    assert settings_from([]) == composed()


def test_wrong_arguments_end_in_one_line(capsys):
    for argument, words in (("--help", "'--help' is no KEY=VALUE"), ("step=[facts]", "step is no option"),
                            ("steps=[fact]", "steps is ['fact']"), ("results=/none", "a folder without")):  # fmt: skip
        assert run_plainly([argument]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert words in line and "allowed: " in line


def test_missing_packages_are_named_before_anything_else(monkeypatch, capsys):
    monkeypatch.setattr(plain_options, "NEEDED", ("torch", "no_such_package"))
    assert run_plainly(["nonsense"]) == 1
    assert "lacks no_such_package; needed: torch, no_such_package" in capsys.readouterr().err


def test_results_go_to_out_or_to_the_environments_out(monkeypatch, tmp_path):
    monkeypatch.delenv("OUT", raising=False)
    assert folder_of({"out": None}, Path("default")) == Path("default")
    monkeypatch.setenv("OUT", str(tmp_path))
    assert folder_of({"out": None}, Path("default")) == tmp_path
    assert folder_of({"out": "mine"}, Path("default")) == Path("mine")


def test_steps_have_sizes_and_named_drafters_exist():
    settings = settings_from([])
    assert settings["steps"] == list(STEPS)
    for sizes in (settings["full"], settings["miniature"]):
        assert set(sizes) == {"backend", *STEPS}
        named = [*(sizes["exactness"]["drafters"] or []), *sizes["synchronisations"]["drafters"],
                 *sizes["synchronisations"]["compiled"], *sizes["graphs"]["drafters"],
                 *set(sizes["exactness"]["compiled"]["decoders"]) - {"baseline"}]  # fmt: skip
        assert set(named) <= set(NAMES)
    assert sum(settings["full"][step]["seconds"] for step in STEPS) <= 540  # of ten minutes, with a minute in reserve


def test_all_drafters_with_an_embedded_checkpoint_are_built_without_hydra():
    assert set(NAMES) - set(DRAFTERS) == {"dflash", "eagle", "mtp", "peagle"}  # their paths are the user's
    arms = built(node_of("online_bandit"), {"dtype": "float32", "attention": "auto"}).keywords["drafters"]
    assert list(arms) == ["small_transformer", "prompt_lookup"]


@pytest.fixture(scope="module")
def miniature(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    """Folder and process of the acceptance in miniature, as `make gpu` runs it on a machine with few packages."""
    folder = tmp_path_factory.mktemp("acceptance")
    (folder / "sitecustomize.py").write_text(BLOCKER)  # imported by every Python process, also by the steps'
    environment = os.environ | {"PYTHONPATH": str(folder), "OUT": str(folder / "out"), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "experiments.gpu_acceptance"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500)
    return folder / "out", done


@pytest.mark.slow
def test_every_step_runs_in_miniature_and_nothing_that_needs_a_gpu_holds(miniature):
    folder, done = miniature
    assert done.returncode == 0, done.stdout + done.stderr
    assert "without hydra, omegaconf, rich: arguments are KEY=VALUE" in done.stdout
    record = load(folder)
    assert list(record["steps"]) == list(STEPS) and record["device"] == "cpu"
    verdicts = {step: {check.verdict for check in result.checks} for step, result in record["steps"].items()}
    assert verdicts == {
        "facts": {NOT_MEASURED}, "exactness": {HOLDS}, "synchronisations": {NOT_MEASURED},
        "graphs": {HOLDS, NOT_MEASURED}, "speed": {NOT_MEASURED}, "long_and_wide": {NOT_MEASURED},
        "bf16": {NOT_MEASURED},
    }  # fmt: skip
    assert not any(result.left_out or result.errors for result in record["steps"].values())
    assert record["steps"]["facts"].facts["versions"]["torch"]
    assert (folder / "gpu_acceptance.md").read_text().count("not measured: no GPU") > 40
    assert sorted(path.name for path in folder.iterdir()) == ["gpu_acceptance.json", "gpu_acceptance.md"]


@pytest.mark.slow
def test_every_bound_belongs_to_a_check(miniature):
    """A bound with a misspelt name would bind nothing."""
    record = load(miniature[0])
    seen = {
        step: {check.name.rpartition(": ")[2] for check in result.checks} for step, result in record["steps"].items()
    }
    full = record["settings"]["full"]
    long = full["long_and_wide"]
    subjects = [*full["speed"]["targets"], *long["texts"], *NAMES]
    subjects += [f"verification, V={long['vocabulary']}, B={rows}" for rows in long["verified_rows"]]
    for bounds in record["settings"]["bounds"].values():
        for step, names in bounds.items():
            for name in names:
                subject, _, quantity = name.rpartition(": ")
                assert quantity in seen[step], name
                assert not subject or re.split(r", (five rows|tree of five)$", subject)[0] in subjects, name


@pytest.mark.slow
def test_a_failed_check_and_a_missing_device_are_in_the_exit_status(tmp_path):
    """The one with real steps: a bound that no sample meets, and a GPU that is not there."""
    program = (
        "import sys; from experiments.gpu import exactness, step_process; exactness.FALSE_ALARM = 2.0;"
        "sys.exit(step_process.run_steps(step_process.Path(sys.argv[1])))"
    )
    settings = settings_from(["steps=[exactness]", "miniature.exactness.drafters=[prompt_lookup]"])
    settings["miniature"]["exactness"]["compiled"]["decoders"] = []
    record = {"settings": settings, "begun": time.time(), "device": "", "steps": {}}
    (tmp_path / "gpu_acceptance.json").write_text(json.dumps(record))
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = load(tmp_path)["steps"]["exactness"].checks
    assert [check.verdict for check in found if "chi-square" in check.name] == [FAILED] * 4

    command = [sys.executable, "-m", "experiments.gpu_acceptance", "device=cuda:9", f"out={tmp_path / 'none'}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "device is 'cuda:9', which cannot be used here" in done.stderr
    assert "Traceback" not in done.stderr
