"""What people find in W&B without having configured anything, where drafters came from, and the way back to records."""

import fnmatch
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments import compare, measure
from experiments.compare import read_records
from experiments.reporting.publish import print_report
from experiments.reporting.tables.comparison_table import markdown_table
from experiments.reporting.tables.token_table import token_table
from experiments.results.record import Record
from experiments.results.records import load_records
from experiments.tracking.tracker import JsonlTracker, Point, Tracker, tracked
from experiments.tracking.wandb_reading import read_offline_run, read_project
from experiments.tracking.wandb_sending import command_for_unsent
from experiments.tracking.wandb_tracker import WandbTracker
from framework.conformance.tiny_models import save_tiny
from tests.support.wandb_server import REPOSITORY, Version, Wandb, always, environment, refusing, serving

ALPHAS = {2: 0.5, 4: 0.25}  # by gamma
DRAFTED = {"text": " <b>", "producer": "accepted", "p": 0.5, "q": 0.25}
LOST = {"text": '"', "p": 0.0625, "q": 0.5}
REPLACED = {"text": "x\n", "producer": "replaced", "p": 0.75, "q": 0.125, "instead_of": LOST}
ROWS = [
    {"name": "a", "seconds": 0.5, "alpha": 0.5, "tau": 1.5, "text": " <b>x\ny&z", "tokens": [DRAFTED, REPLACED]},
    {"name": "b", "seconds": 0.25, "alpha": None, "tau": None, "text": "y", "tokens": []},
]


def make_tracker() -> WandbTracker:
    return WandbTracker(project="outrider", entity=None, mode="offline", probe_seconds=2, sync_seconds=8)


def make_record(gamma: int, **drafter: str) -> dict[str, Any]:
    """Of a point that was measured together with another drafter."""
    return {
        "name": f"medusa-T1-g{gamma}",
        "study": "gamma",
        "point": {"drafter": "medusa", "verifier": "tree_walk", "gamma": gamma, "temperature": 1.0},
        "config": {"drafters": {"medusa": {"nodes": 16, **drafter}, "ngram": {"order": 3}}, "seed": 0},
        "seconds": 3.5,
        "commit": "0123abc",
        "metrics": {
            "alpha/overlap": None,
            "alpha/position/1": ALPHAS[gamma],
            "alpha/position/2": 0.125,
            "alpha/position/3": None,  # never tested
            "speedup/measured": 1.25 + gamma,
            "speedup/zero_overhead": 1.5 + gamma,
            "efficiency": float("nan"),
        },
        "stages_ms_per_round": {"draft": 0.5, "target": 6.25},
        "rounds_histogram": {"accepted": [7, 4, 2]},
        "prompts": ROWS,
    }


def track(folder: Path, records: list[dict[str, Any]], trackers: Sequence[Tracker] = ()) -> None:
    """Write records, and tell W&B of them, unless there are other trackers to be told."""
    for tracker in trackers or (JsonlTracker(), make_tracker()):
        for record in records:
            with tracked(tracker, Point(folder, record["name"], record["study"], record["point"], record["config"])):
                for row in record["prompts"]:
                    tracker.log_prompt(row)
                tracker.finish(record)


def train(folder: Path) -> dict[str, Any]:
    """Write what a training leaves in its folder, and tell W&B of it."""
    facts = {
        "command": "python -m experiments.train drafter=medusa",
        "versions": {"torch": "2.13.0"},
        "drafter": "medusa",
        "target_fingerprint": "90f414cf3ea28bd2",
        "text": {"tokens": 400, "fingerprint": "4bed06b6fddc7aa9"},
        "steps": 20,
        "tokens": 4000,
        "seconds": 3,
        "held_out": {"tokens": 100, "fingerprint": "7df47fafd162409f", "head 1 top-1": 0.5},
        "history": [{"step": 10, "loss": 2.0, "head 1 top-1": 0.25}, {"step": 20, "loss": 1.0, "head 1 top-1": 0.5}],
        "config": {"seed": 0},
    }
    folder.mkdir()
    (folder / "provenance.json").write_text(json.dumps(facts))
    (folder / "heads.safetensors").write_bytes(b"weights")
    (folder / "checkpoint.pt").write_bytes(b"half of the weights")
    make_tracker().log_training(folder, facts, study="heads")
    return facts


def offline_runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*"))  # those of one second in any order


# What is shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two points, as files and in W&B."""
    folder = tmp_path_factory.mktemp("runs")
    track(folder, [make_record(gamma) for gamma in ALPHAS])
    return folder


@pytest.fixture(scope="module")
def run_folder(folder: Path) -> Path:
    """Of the first point."""
    (found,) = (path for path in offline_runs(folder) if load_records(path)[0].name == make_record(min(ALPHAS))["name"])
    return found


@pytest.fixture(scope="module")
def run(run_folder: Path) -> dict[str, Any]:
    """The first point, as W&B shows it."""
    return read_offline_run(run_folder)


@pytest.mark.slow
def test_runs_are_filtered_by_the_own_drafters_options_whoever_was_measured_beside_it(run: dict[str, Any]) -> None:
    assert run["config"]["gamma"] == 2
    assert run["config"]["config"] == {"seed": 0, "drafter": {"nodes": 16}}


def test_every_number_of_the_run_table_has_a_panel_of_its_own(run: dict[str, Any]) -> None:
    """W&B draws what was logged, not what was only put into the summary."""
    numbers = {key: value for key, value in run["summary"].items() if isinstance(value, float)}
    assert numbers.keys() >= {"speedup/measured", "alpha/position/1", "stage_ms_per_round/draft", "walltime_seconds"}
    (last,) = (step for step in run["history"] if "speedup/measured" in step)
    assert {key: last[key] for key in numbers if not key.startswith("_")} == {
        key: value for key, value in numbers.items() if not key.startswith("_")
    }


def test_series_have_their_axes_and_stay_out_of_the_run_table(run: dict[str, Any]) -> None:
    def series(*keys: str) -> list[tuple[float, ...]]:
        return [tuple(step[key] for key in keys) for step in run["history"] if keys[0] in step]

    assert series("position/number", "position/alpha") == [(1, 0.5), (2, 0.125)]
    assert series("prompt/number", "prompt/seconds") == [(1, 0.5), (2, 0.25)]
    assert not [key for key in run["summary"] if key.startswith(("prompt/", "position/", "training/"))]


def test_charts_hold_the_rounds_time_and_the_prediction(run_folder: Path) -> None:
    tables = run_folder / "files" / "media" / "table"

    def rows(chart: str) -> list[list[Any]]:
        (table,) = tables.glob(f"{chart}_table_*.json")
        return json.loads(table.read_text())["data"]

    assert rows("round_time") == [["draft", 0.5], ["target", 6.25]]
    assert rows("predicted_against_measured") == [[3.5, 3.25]]


def test_tokens_are_coloured_by_who_produced_them(run_folder: Path) -> None:
    (page,) = (run_folder / "files" / "media" / "html").glob("tokens_*.html")
    shown = page.read_text(encoding="utf-8")
    assert shown == token_table(ROWS)
    assert '<span class="accepted" title="accepted, p 0.500, q 0.250"> &lt;b&gt;</span>' in shown
    hint = "replaced, p 0.750, q 0.125, instead of &#x27;&quot;&#x27;, p 0.062, q 0.500"
    assert f'<span class="replaced" title="{hint}">x\n</span>y&amp;z</td>' in shown, "what was not recorded follows"
    assert '<td class="tokens">y</td>' in shown, "a prompt whose tokens were not recorded shows its text"
    assert "http" not in shown and "<script" not in shown


def test_the_table_of_prompts_holds_numbers_and_texts(run_folder: Path) -> None:
    (table,) = (run_folder / "files" / "media" / "table").glob("prompts_*.json")
    content = json.loads(table.read_text())
    assert content["columns"] == ["name", "seconds", "alpha", "tau", "text"]
    assert content["data"] == [["a", 0.5, 0.5, 1.5, " <b>x\ny&z"], ["b", 0.25, None, None, "y"]]


# What docs/wandb.md says is shown


@pytest.fixture(scope="module")
def names(overview: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Of everything that a measured point, an overview and a training log."""
    folder = tmp_path_factory.mktemp("measured")
    for seed, model in enumerate(("target", "drafter")):
        save_tiny(folder / model, seed=seed, context=256)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": "ab " * i}) + "\n" for i in (1, 2)))
    overrides = ["target=pretrained", f"target.path={folder / 'target'}", "target.dtype=float32", "device=cpu",
                 f"drafter.model.path={folder / 'drafter'}", "sampling.temperature=1", "prompts=jsonl",
                 f"prompts.source.path={folder / 'prompts.jsonl'}", "prompts.count=2", "max_new_tokens=8", "repeats=1",
                 "stop_at_eos=false", "hugging_face=false", f"hydra.run.dir={folder}"]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["measure", *overrides])
        measure.main()
    train(folder / "training")
    names: set[str] = set()
    for path in [*offline_runs(folder), overview, *offline_runs(folder / "training")]:
        run = read_offline_run(path)
        names |= {*run["config"], *run["summary"], *(key for step in run["history"] for key in step)}
    return names | {name.removesuffix("_table") for name in names if name.endswith("_table")}  # of charts


@pytest.mark.slow
def test_every_panel_of_the_docs_shows_what_is_logged(names: set[str]) -> None:
    text = (REPOSITORY / "docs" / "wandb.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Which panels to open\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    printed = [name for row in section.splitlines() if row.startswith("|") for name in re.findall(r"`(.+?)`", row)]
    assert len(printed) > 40
    assert [name for name in printed if not fnmatch.filter(names, name)] == []


# Where drafters come from


@pytest.mark.slow
def test_a_training_shows_how_it_went(tmp_path: Path) -> None:
    train(tmp_path / "own")
    (path,) = offline_runs(tmp_path / "own")
    run = read_offline_run(path)
    assert (run["name"], run["group"], run["job_type"], run["tags"]) == ("own", "heads", "train", ["medusa"])
    steps = [(step["training/step"], step["training/loss"]) for step in run["history"] if "training/loss" in step]
    assert steps == [(10, 2.0), (20, 1.0)]
    assert run["summary"]["held_out/head 1 top-1"] == 0.5
    assert run["config"]["target_fingerprint"] == "90f414cf3ea28bd2" and run["config"]["config"] == {"seed": 0}


@pytest.mark.slow
def test_a_measured_drafter_leads_back_to_the_run_that_trained_it(tmp_path: Path) -> None:
    train(tmp_path / "own")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "provenance.json").write_text('{"by": "somebody"}')
    track(tmp_path, [make_record(2, path=str(tmp_path / "own")), make_record(4, path=str(tmp_path / "foreign"))])
    wandb = Wandb()
    with serving(wandb) as address:
        for path in [*offline_runs(tmp_path / "own"), *offline_runs(tmp_path)]:
            subprocess.run([sys.executable, "-m", "wandb", "sync", str(path)], cwd=tmp_path, check=True,
                           capture_output=True, env=environment(tmp_path, address), timeout=60)  # fmt: skip
    (training,) = (run for run, job_type in wandb.job_types.items() if job_type == "train")
    drafters = [version for version in wandb.versions if version.type == "drafter"]
    digest = drafters[0].digest
    logged, again = (Version(run, "medusa-90f414cf3ea28bd2", "drafter", digest) for run in (training, None))
    assert drafters == [logged, again], "the same content, so the server has one version, which the training made"
    ((measured, used),) = wandb.used
    assert wandb.job_types[measured] == "measure" and used == again


@pytest.mark.slow
def test_a_checkpoint_is_no_part_of_a_drafter(tmp_path: Path) -> None:
    for name in ("first", "second"):
        train(tmp_path / name)
        (tmp_path / name / "checkpoint.pt").write_text(name)
    commands = [[sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(run)] for run in
                (offline_runs(tmp_path / name)[0] for name in ("first", "second"))]  # fmt: skip
    manifests = []
    for command in commands:
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        (artifact,) = (record["artifact"] for record in map(json.loads, lines) if record["type"] == "artifact")
        assert [entry["path"] for entry in artifact["manifest"]["contents"]] == ["heads.safetensors", "provenance.json"]
        manifests.append(artifact["digest"])
    assert manifests[0] == manifests[1]


# The overview


@pytest.fixture(scope="module")
def overview(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run folder of the overview of three points, reported with a table, a page and pictures."""
    place = tmp_path_factory.mktemp("sweep")
    records = [{**make_record(gamma), "name": f"g{number}"} for number, gamma in enumerate((2, 4, 4))]
    track(place, records, [JsonlTracker()])
    for _ in range(2):  # and not logged twice
        print_report(load_records(place), place / "report", source=str(place), tracker=make_tracker())
    (run,) = offline_runs(place)
    return run


@pytest.mark.slow
def test_an_overview_holds_the_table_of_all_points(overview: Path) -> None:
    shown = read_offline_run(overview)
    assert (shown["job_type"], shown["group"], shown["state"]) == ("overview", "gamma", "finished")
    assert shown["config"] == {"drafter": "medusa", "verifier": "tree_walk", "temperature": 1.0, "points": 3}
    (file,) = (overview / "files" / "media" / "table" / "overview").glob("table_*.json")
    table = json.loads(file.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["name"], row["gamma"], row["speedup/measured"]) for row in rows] == [
        ("g1", 4, 5.25), ("g2", 4, 5.25), ("g0", 2, 3.25),
    ]  # fmt: skip
    assert {row["alpha/position/1"] for row in rows} == set(ALPHAS.values()) and "alpha/overlap" not in table["columns"]


def test_an_overview_holds_the_page_and_the_pictures(overview: Path) -> None:
    report, media = overview.parents[1] / "report", overview / "files" / "media"
    (page,) = (media / "html" / "overview").glob("page_*.html")
    assert page.read_bytes() == (report / "report.html").read_bytes()
    shown = {path.name.rsplit("_", 2)[0]: path.read_bytes() for path in (media / "images" / "overview").iterdir()}
    assert shown == {path.stem: path.read_bytes() for path in report.glob("*.png")} and "speedups" in shown


def test_an_overview_is_no_record(overview: Path) -> None:
    assert len(load_records(overview.parents[1])) == 3
    assert load_records(overview) == []


@pytest.mark.slow
def test_another_point_makes_another_overview(tmp_path: Path) -> None:
    for number in range(1, 4):
        track(tmp_path, [{**make_record(2), "name": str(number)}], [JsonlTracker()])
        print_report(load_records(tmp_path), tmp_path, tracker=make_tracker())
        assert len(offline_runs(tmp_path)) == number - 1, "that of one point is its own run"


@pytest.mark.slow
def test_the_printed_command_sends_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the points of a sweep, and its overview, from a shell in the folder where the command was typed."""
    for number in range(2):
        track(tmp_path / "my sweep" / str(number), [make_record(2 + 2 * number)])
    monkeypatch.chdir(tmp_path)
    print_report(load_records(Path("my sweep")), Path("my sweep"), tracker=make_tracker())
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("To send"))
    wandb = Wandb()
    with serving(wandb) as address:
        subprocess.run(line.split(": ")[1], shell=True, check=True, capture_output=True, timeout=60,
                       env=environment(tmp_path, address))  # fmt: skip
    assert sorted(wandb.job_types.values()) == ["measure", "measure", "overview"]
    assert command_for_unsent(Path("my sweep")) is None


# Told later


@pytest.mark.slow
def test_records_that_wandb_was_not_told_are_published_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [make_record(gamma) for gamma in ALPHAS]
    track(tmp_path / "a", records[:1])
    track(tmp_path / "b", records[1:], [JsonlTracker()])
    for _ in range(2):
        arguments = [f"records={tmp_path}", "publish=true", f"hydra.run.dir={tmp_path / 'shown'}"]
        monkeypatch.setattr(sys, "argv", ["compare", *arguments])
        compare.main()
        for folder, record in zip("ab", records, strict=True):
            (run,) = offline_runs(tmp_path / folder)
            (printed,) = load_records(run)
            assert printed.name == record["name"] and read_offline_run(run)["state"] == "finished"
        (overview,) = offline_runs(tmp_path)
        assert list(overview.glob("files/media/table/overview/*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["null", "wandb:me/outrider"])
def test_what_is_no_folder_of_records_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], source: str
) -> None:
    arguments = [f"records={source}", "publish=true", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["compare", *arguments])
    with pytest.raises(SystemExit):
        compare.main()
    assert "publish is true, and records is" in capsys.readouterr().err


# The way back


def test_offline_runs_give_the_table_of_the_records(folder: Path, tmp_path: Path) -> None:
    expected = markdown_table(load_records(folder))
    assert len(load_records(folder)) == 2, "a copy counts where its original is not there"
    assert load_records(folder / "wandb") == load_records(folder)
    (folder / "wandb").rename(tmp_path / "wandb")
    try:
        assert markdown_table(read_records("records", str(tmp_path))) == expected
        assert markdown_table(read_records("records", str(tmp_path / "wandb"))) == expected
        assert len(read_records("records", str(offline_runs(tmp_path)[0]))) == 1
    finally:
        (tmp_path / "wandb").rename(folder / "wandb")


@pytest.mark.slow
def test_what_wandb_itself_shows_gives_the_table_of_the_records(folder: Path) -> None:
    """The run table's columns, without the file that is read back."""
    shown = [read_offline_run(path) for path in offline_runs(folder)]
    records = [{"name": run["name"], "point": run["config"], "metrics": run["summary"]} for run in shown]
    assert len(records) == 2
    for record in records:
        del record["point"]["config"], record["point"]["commit"]
    assert markdown_table([*map(Record.from_json, records)]) == markdown_table(load_records(folder))


class FakeApi:
    """A project with the runs of a folder, a study named gamma, and one that failed."""

    def __init__(self, folder: Path) -> None:
        self._folders = [path / "files" for path in offline_runs(folder)]

    def runs(self, path: str, filters: dict[str, Any]) -> list[Any]:
        assert path == "me/outrider" and filters["jobType"] == "measure"
        failed = SimpleNamespace(name="broken", state="crashed", files=lambda names: iter([]))
        if {"group": "gamma"} not in filters.get("$or", [{"group": "gamma"}]):  # the group of runs without config.study
            return []
        return [failed, *(SimpleNamespace(files=partial(self._files, folder)) for folder in self._folders)]

    @staticmethod
    def _files(folder: Path, names: list[str]) -> Iterator[Any]:
        for path in (folder / name for name in names):
            yield SimpleNamespace(download=lambda root, replace, path=path: path.open())


@pytest.mark.parametrize("path", ["me/outrider", "me/outrider/gamma"])
def test_a_project_gives_the_table_of_the_records(folder: Path, path: str) -> None:
    with pytest.warns(RuntimeWarning, match=r"W&B run broken \(crashed\) holds no record"):
        assert markdown_table(read_project("records", path, FakeApi(folder))) == markdown_table(load_records(folder))


def test_of_a_project_one_study_is_read(folder: Path) -> None:
    assert read_project("records", "me/outrider/another", FakeApi(folder)) == []


@pytest.mark.parametrize("path", ["", "outrider", "me/", "/outrider", "me/outrider/gamma/more"])
def test_what_is_no_project_names_the_key(path: str) -> None:
    with pytest.raises(ValueError, match=r"records is 'wandb:.*'; allowed: wandb:entity/project"):
        read_records("records", f"wandb:{path}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "reason"), [(refusing, "Connection refused"), (always(401, "this key is unknown"), "key is unknown")]
)
def test_without_a_server_the_way_out_is_said(tmp_path: Path, server: Any, reason: str) -> None:
    program = "from experiments.tracking.wandb_reading import read_project; read_project('records', 'me/outrider')"
    with server() as address:
        done = subprocess.run([sys.executable, "-c", program], env=environment(tmp_path, address), cwd=tmp_path,
                              capture_output=True, text=True, timeout=60)  # fmt: skip
    said = done.stderr.splitlines()[-1]
    assert "records is 'wandb:me/outrider'" in said and reason in said and "give the folder" in said
