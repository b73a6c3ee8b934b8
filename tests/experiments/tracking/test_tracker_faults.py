"""What a kill, a second run, or a mirror that breaks can take from the records: nothing that was acknowledged."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.reporting.publish import mirror, mirror_training
from experiments.results.record import Record
from experiments.results.records import load_records
from experiments.tracking.tracker import Point

REPOSITORY = Path(__file__).parents[3]
ROWS = 64  # of each point
TEXTS = ["", "α" * 50_000]  # most rows are short and could wait in a buffer; a kill can fall inside the long ones
RECORD = {"point": {}, "metrics": {"values": list(range(20_000))}}

# Logs points without end; after each call that returned it says so.
LOGS_UNTIL_KILLED = f"""
import itertools, sys
from pathlib import Path
from experiments.tracking.tracker import JsonlTracker, Point
tracker = JsonlTracker()
for point in itertools.count():
    tracker.start(Point(folder=Path(sys.argv[1]), name=str(point), study="s", settings={{}}, config={{}}))
    for row in range({ROWS}):
        tracker.log_prompt({{"row": row, "text": "α" * ((row % 8 == 7) * {len(TEXTS[1])})}})
        print(point, row, flush=True)
    tracker.finish({{"point": {{}}, "metrics": {{"values": list(range({len(RECORD["metrics"]["values"])}))}}}})
    print(point, "record", flush=True)
"""

# Measures the points 0 to 29 of one folder, as another process does at the same time.
RACES = f"""
import os, sys
from pathlib import Path
from experiments.tracking.tracker import JsonlTracker, Point, tracked
tracker = JsonlTracker()
print("ready", flush=True)
sys.stdin.readline()
for point in range(30):
    try:
        with tracked(tracker, Point(folder=Path(sys.argv[1]), name=str(point), study="s", settings={{}}, config={{}})):
            for row in range({ROWS}):
                tracker.log_prompt({{"process": os.getpid(), "row": row}})
            tracker.finish({{"point": {{}}, "metrics": {{}}, "process": os.getpid()}})
        print(point, "won")
    except FileExistsError as error:
        print(point, error)
"""


def child(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def whole_lines(file: Path) -> list[dict[str, Any]]:
    """What a reader gets who leaves out what follows the last newline."""
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


# Killed


@pytest.mark.parametrize("seed", range(20))
def test_a_kill_takes_at_most_the_line_being_written(tmp_path: Path, seed: int) -> None:
    with child(LOGS_UNTIL_KILLED, tmp_path) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline()]
        time.sleep(random.Random(seed).uniform(0, 0.25))
        process.kill()
        acknowledged += process.stdout.readlines()
    acknowledged = [line for line in acknowledged if line.endswith("\n")]  # the kill may tear this one, too
    assert acknowledged[0] == "0 0\n"
    for point, what in map(str.split, acknowledged):
        if what == "record":
            assert (tmp_path / point / "record.json").exists()
        else:
            assert len(whole_lines(tmp_path / point / "prompts.jsonl")) > int(what)
    for folder in tmp_path.iterdir():  # the point during which the kill fell, too
        if (folder / "prompts.jsonl").exists():
            rows = whole_lines(folder / "prompts.jsonl")
            assert rows == [{"row": row, "text": TEXTS[row % 8 == 7]} for row in range(len(rows))]
        if (folder / "record.json").exists():
            assert json.loads((folder / "record.json").read_text()) == RECORD
            assert len(rows) == ROWS
    assert len(load_records(tmp_path)) >= sum("record" in line for line in acknowledged)


def test_the_tracker_is_light_to_import() -> None:
    heavy = {"torch", "transformers", "numpy", "wandb"}
    program = f"import sys, experiments.tracking.tracker; print({heavy} & set(sys.modules))"
    with child(program) as process:
        assert process.communicate()[0] == "set()\n"


# Two at once


def test_two_runs_in_one_folder_share_no_point(tmp_path: Path) -> None:
    racers = [child(RACES, tmp_path) for _ in range(2)]
    assert all(racer.stdout and racer.stdout.readline() == "ready\n" for racer in racers)
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].splitlines() for racer in racers]
    for point, lines in enumerate(zip(*said, strict=True)):
        (winner,) = (racer.pid for racer, line in zip(racers, lines, strict=True) if line == f"{point} won")
        (lost,) = (line for line in lines if line != f"{point} won")
        # The winner may still be measuring.
        assert re.search("already holds (a measured|an unfinished) point", lost) and "hydra.run.dir" in lost
        folder = tmp_path / str(point)
        assert sorted(path.name for path in folder.iterdir()) == ["prompts.jsonl", "record.json"]
        rows = whole_lines(folder / "prompts.jsonl")
        assert rows == [{"process": winner, "row": row} for row in range(ROWS)]
        assert json.loads((folder / "record.json").read_text())["process"] == winner


# A mirror that breaks


class Breaking:
    """Raises in one of its methods for the first point, and in fail as well; keeps what it is told of the others."""

    def __init__(self, *, breaks_in: str) -> None:
        self._breaks_in = breaks_in
        self._name = ""
        self.finished: list[str] = []

    def start(self, point: Point) -> None:
        self._name = point.name
        self._break("start")

    def log_prompt(self, row: dict[str, Any]) -> None:
        self._break("log_prompt")

    def finish(self, record: dict[str, Any]) -> None:
        self._break("finish")
        self.finished.append(self._name)

    def fail(self, error: BaseException) -> None:
        self._break("fail")

    def has_finished(self, point: Point) -> bool:
        return point.name in self.finished

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        self._name = "first"
        self._break("log_training")

    def _break(self, method: str) -> None:
        if self._name == "first" and method in (self._breaks_in, "fail"):
            raise ConnectionError(f"[/graphql] broke in {method}\nand more lines")


@pytest.mark.parametrize("method", ["start", "log_prompt", "finish"])
def test_a_mirror_that_breaks_costs_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str], method: str) -> None:
    tracker = Breaking(breaks_in=method)
    records = [Record(name=name, study="s", prompts=[{"name": "a"}]) for name in ("first", "second")]
    mirror(records, tracker, folder=tmp_path)
    assert tracker.finished == ["second"]
    mirror(records[1:], tracker, folder=tmp_path)
    assert tracker.finished == ["second"], "what was told is not told again"
    (line,) = capfd.readouterr().err.splitlines()
    for shown in ("Breaking", "first", "files on disk are complete", "tracker=jsonl", f"[/graphql] broke in {method}"):
        assert shown in line


def test_a_mirror_that_breaks_costs_a_training_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mirror_training(tmp_path / "heads", {}, Breaking(breaks_in="log_training"), study="train")
    (line,) = capfd.readouterr().err.splitlines()
    assert "heads, whose files on disk are complete" in line and "[/graphql] broke in log_training" in line
