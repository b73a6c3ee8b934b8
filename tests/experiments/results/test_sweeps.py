"""What a sweep survives: points that fail, kills, a second sweep; and what its points share."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from drafters.small_transformer import SmallTransformer
from experiments import measure
from experiments.config import builders
from experiments.measurement import batch_runner
from experiments.measurement.resource_cache import ResourceCache, process_cache
from experiments.results.sweeps import LOCK_FILE, Sweep, check_cores, claim, set_aside
from experiments.tracking import wandb_tracker
from framework.decoding.engine import Engine
from tests.support.counted_records import records_of
from tests.support.tiny_pair import tiny_pair

REPOSITORY = Path(__file__).parents[3]
FOUR_POINTS = ["gamma.gamma=1,2", "sampling.temperature=0,1"]
TWELVE_POINTS = ["drafter=prompt_lookup,uniform_random", "gamma.gamma=1,2,3", "sampling.temperature=0,1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a point that is soon measured, on two short prompts."""
    return [
        *tiny_pair(tmp_path_factory.mktemp("tiny"), "def ab(x):", "z"), "max_new_tokens=8", "repeats=1",
        "hugging_face=false", "tracker=jsonl", "engine.compile=false",
    ]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_loaded() -> Iterator[None]:
    """What other tests loaded in this process is forgotten."""
    process_cache.cache_clear()
    yield
    process_cache.cache_clear()


def sweep(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """As the command line would, in this process."""
    monkeypatch.setattr(sys, "argv", ["measure", "-m", *arguments])
    measure.main()


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.measure", "-m", *arguments]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


# A point that fails


@pytest.mark.slow
def test_a_point_that_fails_ends_nothing_but_itself(tiny, tmp_path, monkeypatch, capfd):
    arguments = [*tiny, "drafter=prompt_lookup", "gamma.gamma=1,-1,2", f"hydra.sweep.dir={tmp_path}"]
    with pytest.raises(SystemExit) as ended:
        sweep(monkeypatch, *arguments)
    shown = capfd.readouterr()
    assert ended.value.code == 1
    assert f"1 of 3 points have no record; the same command measures them again\n  {tmp_path}/1 (gamma.gamma=-1): " in (
        shown.err
    )
    assert "HYDRA_FULL_ERROR" not in shown.err
    assert "gamma.gamma is -1; allowed" in shown.err and "prompt_lookup" in shown.out  # the table of those that did not
    error = json.loads((tmp_path / "1" / "error.json").read_text())
    assert error["error"].startswith("OptionError: gamma.gamma is -1") and error["config"]["gamma"]["gamma"] == -1
    first = sorted(tmp_path.rglob("record.json"))
    assert [path.parts[-3] for path in first] == ["0", "2"]

    dates = [path.stat().st_mtime_ns for path in first]
    with pytest.raises(SystemExit):
        sweep(monkeypatch, *arguments)
    assert [path.stat().st_mtime_ns for path in first] == dates  # only the one without a record was tried again
    assert (tmp_path / "1" / "error.attempt1.json").exists() and (tmp_path / "1" / "error.json").exists()


@pytest.mark.slow
def test_an_error_in_the_middle_of_a_point_is_its_own(tiny, tmp_path, monkeypatch, capfd):
    arguments = [*tiny, "drafter=prompt_lookup", *FOUR_POINTS, f"hydra.sweep.dir={tmp_path}"]
    begin = Engine.begin

    def fails_at_temperature_1(engine: Engine, *prompts: Any, **settings: Any) -> Any:
        if engine.sampling.temperature:
            raise RuntimeError("out of memory")
        return begin(engine, *prompts, **settings)

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(Engine, "begin", fails_at_temperature_1)
        sweep(patched, *arguments)
    assert "2 of 4 points have no record" in capfd.readouterr().err
    sweep(monkeypatch, *arguments)
    assert len(records_of(tmp_path)) == 4 and not list(tmp_path.rglob("error.json"))


# Killed


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(tiny, tmp_path, monkeypatch, capfd):
    """One kill, in the middle of four points; the slow test kills three times at random."""
    arguments = [*tiny, "drafter=prompt_lookup", *FOUR_POINTS]
    process = started(*arguments, cwd=tmp_path)
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob("outputs/sweep/*/*/*/record.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (folder,) = (tmp_path / "outputs" / "sweep").iterdir()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("record.json")}
    assert 1 <= len(before) < 4
    monkeypatch.chdir(tmp_path)
    sweep(monkeypatch, *arguments)
    assert f"goes on in {folder.relative_to(tmp_path)}: {len(before)} of 4 points" in capfd.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    sweep(monkeypatch, *arguments, f"hydra.sweep.dir={tmp_path / 'whole'}")
    assert records_of(folder) == records_of(tmp_path / "whole") and len(records_of(folder)) == 4


@pytest.mark.slow
def test_kills_at_random_moments_change_no_record(tiny, tmp_path):
    whole = tmp_path / "whole"
    with started(*tiny, *TWELVE_POINTS, f"hydra.sweep.dir={whole}", cwd=tmp_path) as process:
        begun = time.monotonic()
        assert process.stdout is not None and any("Launching" in line for line in process.stdout)
        launching = time.monotonic()
        process.communicate()
    starting, measuring = launching - begun, (time.monotonic() - launching) / 12
    assert process.returncode == 0

    dice, sweeps = random.Random(0), tmp_path / "outputs" / "sweep"
    for attempt in range(3):
        process = started(*tiny, *TWELVE_POINTS, cwd=tmp_path)
        if attempt == 0:
            time.sleep(dice.uniform(0, starting))
        else:
            assert process.stdout is not None and any("Launching" in line for line in process.stdout)
            time.sleep(dice.uniform(0, 1.2 * measuring))
        assert process.poll() is None
        process.kill()
        process.communicate()
        assert len(list(sweeps.rglob("record.json"))) < 12  # else this was no kill in the middle of it
    with started(*tiny, *TWELVE_POINTS, cwd=tmp_path) as process:
        assert process.communicate() and process.returncode == 0
    (folder,) = sweeps.iterdir()
    assert records_of(folder) == records_of(whole) and len(records_of(whole)) == 12


# What W&B is told


def in_wandb(tiny: list[str]) -> list[str]:
    return [argument for argument in tiny if argument != "tracker=jsonl"]  # W&B is the yaml's own choice


@pytest.mark.slow
def test_a_server_that_is_down_is_asked_once_by_a_sweep(tiny, tmp_path, monkeypatch, capfd):
    asked: list[str] = []

    def probe(address: str, seconds: float) -> None:
        asked.append(address)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(wandb_tracker, "probe", probe)
    # The target differs from point to point, and one point fails: either way what was loaded is forgotten.
    sweep_of = ["drafter=prompt_lookup", "target.context=64,96", "gamma.gamma=1,-1", f"hydra.sweep.dir={tmp_path}"]
    with pytest.raises(SystemExit):
        sweep(monkeypatch, *in_wandb(tiny), "tracker.mode=online", *sweep_of)
    shown = [line for line in capfd.readouterr().out.splitlines() if line.startswith("W&B")]
    *of_points, of_overview = shown
    assert len(asked) == 1 and of_overview.endswith(f"-m wandb sync {tmp_path}/wandb")
    for point, line in zip(("0", "2"), of_points, strict=True):
        assert ("nobody there" in line) == (point == "0") and line.endswith(f"-m wandb sync {tmp_path / point}/wandb")
        assert len(list((tmp_path / point / "wandb").glob("offline-run-*"))) == 1


@pytest.mark.slow
def test_what_a_kill_kept_from_wandb_is_told_when_the_sweep_goes_on(tiny, tmp_path, monkeypatch, capfd):
    arguments = [*in_wandb(tiny), "drafter=prompt_lookup", "gamma.gamma=1,2", f"hydra.sweep.dir={tmp_path}"]

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(measure, "mirror", killed)  # the first point's record is on the disk by then
        sweep(patched, *arguments)
    assert len(records_of(tmp_path)) == 1 and not list(tmp_path.rglob("offline-run-*"))
    for _ in range(2):  # and not told twice
        sweep(monkeypatch, *arguments)
        copies = sorted(tmp_path.glob("*/wandb/offline-run-*/files/record.json"))
        assert [json.loads(path.read_text())["point"]["gamma"] for path in copies] == [1, 2]
        assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1  # the overview
    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr("experiments.reporting.publish.print_report", killed)
        sweep(patched, *arguments)
    assert f"interrupted; 2 of 2 points have a record in {tmp_path}" in capfd.readouterr().err.replace("\n", "")


# Two sweeps at once, in one folder or side by side

TWO = Sweep.of({"0": ["gamma.gamma=1"], "1": ["gamma.gamma=2"]}, {"0": "gamma: 1", "1": "gamma: 2"})
ANOTHER = Sweep.of(TWO.overrides, {"0": "gamma: 1", "1": "gamma: 3"})


def put_record(folder: Path, *points: str) -> None:
    for point in points:
        (folder / point / "name").mkdir(parents=True)
        (folder / point / "name" / "record.json").write_text("{}")


def test_the_newest_unfinished_sweep_of_the_same_points_goes_on(tmp_path):
    for name in ("first", "second", "finished"):
        _, lock = claim(tmp_path / name, TWO, is_chosen=True)
        lock.release()
        os.utime(tmp_path / name / "sweep.json", times=(len(name), len(name)))
    put_record(tmp_path / "first", "1")
    put_record(tmp_path / "finished", "0", "1")
    folder, lock = claim(tmp_path / "new", TWO, is_chosen=False)
    assert folder == tmp_path / "second" and TWO.without_record(folder) == ["0", "1"]
    # It is being measured now: whoever comes next takes another one, and the third begins anew.
    others = [claim(tmp_path / "new", TWO, is_chosen=False) for _ in range(2)]
    assert [other for other, _ in others] == [tmp_path / "first", tmp_path / "new"]
    assert TWO.without_record(tmp_path / "first") == ["0"]
    assert claim(tmp_path / "another", ANOTHER, is_chosen=False)[0] == tmp_path / "another"


def test_a_folder_that_is_taken_is_refused(tmp_path):
    _, lock = claim(tmp_path, TWO, is_chosen=True)
    with pytest.raises(ValueError, match=r"hydra\.sweep\.dir is .* another process"):
        claim(tmp_path, TWO, is_chosen=True)
    lock.release()
    assert claim(tmp_path, TWO, is_chosen=True)[0] == tmp_path


def test_another_sweeps_folder_is_refused(tmp_path):
    _, lock = claim(tmp_path, TWO, is_chosen=True)
    lock.release()
    with pytest.raises(ValueError, match="holds another sweep"):
        claim(tmp_path, ANOTHER, is_chosen=True)
    put_record(tmp_path / "older", "0")  # by a version that did not say of which sweep
    with pytest.raises(ValueError, match="holds another sweep"):
        claim(tmp_path / "older", TWO, is_chosen=True)
    with FileLock(tmp_path / "older" / LOCK_FILE, timeout=0):
        pass  # what was refused is not kept locked


def test_earlier_attempts_stay(tmp_path):
    (tmp_path / "name").mkdir()
    for attempt in "abc":
        (tmp_path / "name" / "prompts.jsonl").write_text(attempt)
        set_aside(tmp_path)
    assert {path.name: path.read_text() for path in (tmp_path / "name").iterdir()} == {
        "prompts.attempt1.jsonl": "a", "prompts.attempt2.jsonl": "b", "prompts.attempt3.jsonl": "c",
    }  # fmt: skip


# What points of one process share


@pytest.mark.slow
def test_points_share_target_drafter_prompts_and_plain_decoding(tiny, tmp_path, monkeypatch):
    made: list[str] = []
    for module, name in ((builders, "build_target"), (builders, "build_prompts"), (batch_runner, "Autoregressive")):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, make=make, name=name, **k: (made.append(name), make(*a, **k))[1])
    init = SmallTransformer.__init__
    monkeypatch.setattr(SmallTransformer, "__init__", lambda *a, **k: (made.append("drafter"), init(*a, **k))[1])
    drafter = Path(tiny[1].split("=")[1]).parent / "drafter"
    sweep(monkeypatch, *tiny, "drafter=small_transformer", f"drafter.model.path={drafter}", *FOUR_POINTS,
          f"hydra.sweep.dir={tmp_path}")  # fmt: skip
    # Plain decoding at two temperatures.
    assert {name: made.count(name) for name in made} == {
        "build_target": 1, "drafter": 1, "build_prompts": 1, "Autoregressive": 2,
    }  # fmt: skip
    assert len(records_of(tmp_path)) == 4


@pytest.mark.slow
def test_a_record_does_not_depend_on_what_was_loaded_before(tiny, tmp_path, monkeypatch):
    points = [*tiny, "drafter=prompt_lookup,uniform_random", "sampling.temperature=1", "max_new_tokens=6,8"]
    sweep(monkeypatch, *points, f"hydra.sweep.dir={tmp_path / 'shared'}")
    # Hydra counts the key that stands first, which is among tiny's, most slowly.
    for place, (length, drafter) in enumerate((n, d) for n in (6, 8) for d in ("prompt_lookup", "uniform_random")):
        alone = tmp_path / "alone" / str(place)
        own = ["drafter=" + drafter, "sampling.temperature=1", f"max_new_tokens={length}", f"hydra.run.dir={alone}"]
        monkeypatch.setattr(sys, "argv", ["measure", *tiny, *own])
        measure.main()
    assert records_of(tmp_path / "shared") == records_of(tmp_path / "alone")


def test_one_thing_is_kept_with_what_was_made_for_it():
    kept, made = ResourceCache(), []
    for name in "aab":
        kept.main(name, lambda name=name: made.append(name))
        kept.derived("of it", lambda name=name: made.append(f"of {name}"))
    assert made == ["a", "of a", "b", "of b"]


# Points at once, where times count


def launcher(name: str, **settings: Any) -> Any:
    return OmegaConf.create({"_target_": f"hydra_plugins.any.{name}", **settings})


def points(*verifiers: str, share_cores: Any = False) -> list[Any]:
    return [
        OmegaConf.create({"share_cores": share_cores, "hydra": {"runtime": {"choices": {"verifier": verifier}}}})
        for verifier in verifiers
    ]


@pytest.mark.parametrize("name", ["JoblibLauncher", "LocalLauncher", "RayLauncher", "OneNobodyKnows"])
def test_points_that_are_timed_share_no_cores(name):
    with pytest.raises(ValueError, match=rf"share_cores is false, and {name}"):
        check_cores(launcher(name, n_jobs=2), points("default", "teacher_forced"))
    check_cores(launcher(name), points("default"))
    check_cores(launcher(name), points("teacher_forced", "teacher_forced"))
    check_cores(launcher(name), points("default", "default", share_cores=True))
    for alone in (launcher("BasicLauncher"), launcher("SlurmLauncher"), launcher("JoblibLauncher", n_jobs=1)):
        check_cores(alone, points("default", "default"))
    with pytest.raises(ValueError, match="share_cores is 'yes'"):
        check_cores(launcher("BasicLauncher"), points("default", share_cores="yes"))


@pytest.mark.slow
def test_a_timed_sweep_is_refused_before_anything_is_measured(tiny, tmp_path, monkeypatch, capfd):
    with pytest.raises(SystemExit):
        sweep(monkeypatch, *tiny, "drafter=prompt_lookup", "gamma.gamma=1,2", "hydra/launcher=joblib_processes",
              f"hydra.sweep.dir={tmp_path / 'sweep'}")  # fmt: skip
    assert "share_cores is false" in capfd.readouterr().err and not (tmp_path / "sweep").exists()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["joblib_processes", "submitit_here"])
def test_launchers_measure_the_same_as_one_process(tiny, tmp_path, monkeypatch, preset):
    arguments = [*tiny, "drafter=prompt_lookup", "gamma.gamma=1,2", "share_cores=true"]
    with started(*arguments, f"hydra/launcher={preset}", f"hydra.sweep.dir={tmp_path / preset}", cwd=tmp_path) as ran:
        shown = ran.communicate()[0]
    assert ran.returncode == 0, shown
    sweep(monkeypatch, *arguments, f"hydra.sweep.dir={tmp_path / 'basic'}")
    assert records_of(tmp_path / preset) == records_of(tmp_path / "basic")
