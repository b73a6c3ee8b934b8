"""What was logged is on the disk, whatever happens next; and W&B gives back what it was told."""

import inspect
import json
import re
from pathlib import Path

import hydra
import pytest
from omegaconf import OmegaConf

from experiments.tracking.tracker import JsonlTracker, NoTracker, Point, Tracker, tracked
from experiments.tracking.wandb_reading import read_offline_run
from experiments.tracking.wandb_tracker import WandbTracker

REPOSITORY = Path(__file__).parents[3]
YAMLS = sorted((REPOSITORY / "conf" / "tracker").glob("*.yaml"))


def make_point(folder: Path, gamma: int = 4) -> Point:
    settings = {"drafter": "ngram", "verifier": "speculative_sampling", "gamma": gamma, "temperature": 1.0}
    return Point(
        folder=folder,
        name=f"ngram-T1-g{gamma}",
        study="compare",
        settings=settings,
        config={"drafter": {"order": 3}, "stop_strings": ["a", "b"]},
    )


def make_record(gamma: int = 4) -> dict:
    return {
        "name": f"ngram-T1-g{gamma}",
        "point": make_point(Path(), gamma).settings,
        "seconds": 3.5,
        "commit": "0123abc",
        "metrics": {"alpha/overlap": 0.25 + gamma / 100, "alpha/position/1": 0.5, "alpha/check": True, "c": None},
        "stages_ms_per_round": {"draft": 0.5, "target": 6.25},
        "rounds_histogram": {"accepted": [7, 4, 2, 0, 1]},
    }


def offline_tracker() -> WandbTracker:
    return WandbTracker(project="outrider", entity=None, mode="offline", probe_seconds=2, sync_seconds=8)


def strict_json(path: Path) -> dict:
    """Parsed as JSON is defined, without NaN and infinities."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} in {path}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


# The files


def test_a_row_is_on_the_disk_when_log_prompt_returns(tmp_path: Path) -> None:
    tracker, point = JsonlTracker(), make_point(tmp_path)
    tracker.start(point)
    for number in range(3):
        tracker.log_prompt({"name": f"prompt {number}", "text": "two\nlines, α"})
        lines = (tmp_path / point.name / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["name"] for line in lines] == [f"prompt {i}" for i in range(number + 1)]
    tracker.finish(make_record())


def test_one_tracker_serves_points_one_after_another(tmp_path: Path) -> None:
    tracker = JsonlTracker()
    for gamma in (2, 4):
        with tracked(tracker, make_point(tmp_path, gamma)):
            tracker.log_prompt({"gamma": gamma})
            tracker.finish(make_record(gamma))
    for gamma in (2, 4):
        folder = tmp_path / f"ngram-T1-g{gamma}"
        assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl", "record.json"]
        assert strict_json(folder / "record.json") == make_record(gamma)
        assert strict_json(folder / "prompts.jsonl") == {"gamma": gamma}


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    tracker, point = JsonlTracker(), make_point(tmp_path)
    with tracked(tracker, point):
        tracker.log_prompt({"alpha": float("nan")})
        tracker.finish({"metrics": {"c": float("inf"), "tau": 2.5}, "list": [1, (float("-inf"), 2)]})
    assert strict_json(tmp_path / point.name / "prompts.jsonl") == {"alpha": None}
    assert strict_json(tmp_path / point.name / "record.json") == {
        "metrics": {"c": None, "tau": 2.5},
        "list": [1, [None, 2]],
    }


def test_a_path_that_is_no_utf8_can_be_recorded(tmp_path: Path) -> None:
    """Found by fuzzing: Python gives such bytes as lone surrogates, and the record was lost when it was written."""
    path = b"caf\xe9".decode("utf-8", "surrogateescape")
    tracker = JsonlTracker()
    tracker.start(make_point(tmp_path))
    tracker.log_prompt({"name": path})
    tracker.finish({"command": path})
    folder = tmp_path / make_point(tmp_path).name
    assert json.loads((folder / "prompts.jsonl").read_text()) == {"name": path}
    assert json.loads((folder / "record.json").read_text()) == {"command": path}


def test_a_failed_point_leaves_its_rows_and_its_error(tmp_path: Path) -> None:
    point = make_point(tmp_path)
    tracker = JsonlTracker()
    with pytest.raises(KeyboardInterrupt), tracked(tracker, point):
        tracker.log_prompt({"name": "first"})
        raise KeyboardInterrupt("stopped by hand")
    folder = tmp_path / point.name
    assert sorted(path.name for path in folder.iterdir()) == ["error.json", "prompts.jsonl"]
    error = strict_json(folder / "error.json")
    assert error["error"] == "KeyboardInterrupt: stopped by hand"
    assert "stopped by hand" in error["traceback"]
    assert error["point"] == point.settings
    assert error["config"] == point.config


def test_a_record_that_is_no_json_leaves_no_half_record(tmp_path: Path) -> None:
    point = make_point(tmp_path)
    tracker = JsonlTracker()
    with pytest.raises(TypeError), tracked(tracker, point):
        tracker.finish(make_record() | {"unwritable": object()})
    assert not (tmp_path / point.name / "record.json").exists()
    assert "TypeError" in strict_json(tmp_path / point.name / "error.json")["error"]


def test_a_measured_point_is_not_overwritten(tmp_path: Path) -> None:
    point = make_point(tmp_path)
    with tracked(first := JsonlTracker(), point):
        first.log_prompt({"name": "precious"})
        first.finish(make_record())
    with pytest.raises(FileExistsError, match=r"hydra\.run\.dir"), tracked(JsonlTracker(), point):
        pass
    folder = tmp_path / point.name
    assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl", "record.json"]
    assert strict_json(folder / "prompts.jsonl") == {"name": "precious"}


# W&B


@pytest.fixture(scope="module")
def offline_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """Two points that finished and one that failed, written and read back, by name."""
    folder = tmp_path_factory.mktemp("runs")
    tracker = offline_tracker()
    for gamma in (2, 4):
        with tracked(tracker, make_point(folder, gamma)):
            tracker.log_prompt({"name": "a", "seconds": 0.5, "alpha": None, "text": "x"})
            tracker.log_prompt({"name": "b", "seconds": 0.25, "alpha": 0.75, "text": "y"})
            tracker.finish(make_record(gamma))
    with pytest.raises(RuntimeError), tracked(tracker, make_point(folder, 8)):
        raise RuntimeError("the drafter broke")
    runs = [read_offline_run(path) for path in sorted((folder / "wandb").glob("offline-run-*"))]
    assert len(runs) == 3
    return {run["name"]: run for run in runs}


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [2, 4])
def test_a_wandb_run_holds_config_alpha_and_walltime(offline_runs: dict[str, dict], gamma: int) -> None:
    run = offline_runs[f"ngram-T1-g{gamma}"]
    assert (run["state"], run["exit_code"]) == ("finished", 0)
    point = make_point(Path(), gamma)
    assert run["config"] == {**point.settings, "study": "compare", "config": point.config, "commit": "0123abc"}
    summary = {key: value for key, value in run["summary"].items() if not key.startswith("_")}
    assert summary.pop("prompts")["nrows"] == summary.pop("round_time_table")["nrows"] == 2
    assert summary.pop("tokens")["_type"] == "html-file"
    histogram = summary.pop("accepted_per_round")
    assert (histogram["values"], histogram["bins"]) == ([7, 4, 2, 0, 1], [0, 1, 2, 3, 4, 5])
    assert summary == {
        "alpha/overlap": 0.25 + gamma / 100,
        "alpha/position/1": 0.5,
        "alpha/check": True,
        "stage_ms_per_round/draft": 0.5,
        "stage_ms_per_round/target": 6.25,
        "walltime_seconds": 3.5,
    }


def test_wandb_runs_are_grouped_and_tagged(offline_runs: dict[str, dict]) -> None:
    """The group of a comparison names its folder, so that every comparison is a group of its own."""
    for run in offline_runs.values():
        assert re.fullmatch(r"compare runs\d+", run["group"]) and run["job_type"] == "measure"
        assert set(run["tags"]) == {"ngram", "speculative_sampling", "T=1"}


def test_a_failed_point_closes_its_wandb_run(offline_runs: dict[str, dict]) -> None:
    run = offline_runs["ngram-T1-g8"]
    assert run["exit_code"] == 1
    assert run["summary"]["error"] == "RuntimeError: the drafter broke"


def test_an_unknown_mode_names_the_key() -> None:
    with pytest.raises(ValueError, match=r"tracker\.mode is 'on'; allowed: offline, online, disabled"):
        WandbTracker(project="p", entity=None, mode="on", probe_seconds=2, sync_seconds=8)  # type: ignore[arg-type]


def test_disabled_writes_nothing(tmp_path: Path) -> None:
    tracker = WandbTracker(project="p", entity=None, mode="disabled", probe_seconds=2, sync_seconds=8)
    with tracked(tracker, make_point(tmp_path)):
        tracker.log_prompt({"seconds": 1.0})
        tracker.finish(make_record())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_a_run_holds_is_known_to_later_processes(tmp_path: Path) -> None:
    shown, failed = make_point(tmp_path, 2), make_point(tmp_path, 4)
    with tracked(tracker := offline_tracker(), shown):
        tracker.finish(make_record(2))
    with pytest.raises(RuntimeError), tracked(tracker, failed):
        raise RuntimeError("the drafter broke")
    assert [offline_tracker().has_finished(point) for point in (shown, failed)] == [True, False]
    (line,) = (tmp_path / shown.name / "wandb_run.txt").read_text().splitlines()
    assert read_offline_run(Path(line))["name"] == shown.name


# Every tracker


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_a_yaml_spells_every_option_and_builds_a_tracker(path: Path) -> None:
    config = OmegaConf.load(path)
    tracker_class = hydra.utils.get_class(config._target_)
    assert set(config) - {"_target_"} == set(inspect.signature(tracker_class).parameters)
    tracker = hydra.utils.instantiate(config, _convert_="all")
    for method in ("start", "log_prompt", "finish", "fail", "has_finished"):
        parameters = list(inspect.signature(getattr(Tracker, method)).parameters)[1:]
        assert list(inspect.signature(getattr(tracker, method)).parameters) == parameters


@pytest.mark.parametrize("tracker", [JsonlTracker(), NoTracker(), offline_tracker()], ids=lambda it: type(it).__name__)
def test_failing_without_a_started_point_does_nothing(tracker: Tracker) -> None:
    tracker.fail(RuntimeError("start raised"))
