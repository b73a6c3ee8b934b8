"""The command itself, with a W&B server that is down or dumb, and killed in the middle: what was measured is there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from experiments.results.records import load_records
from framework.conformance.tiny_models import save_tiny
from tests.support.wandb_server import PROMISE, environment, refusing, silent

NUM_PROMPTS = 100
NUM_LOGGED = 10  # before a kill

# The command, and in its last line the seconds that telling W&B took.
MEASURES = """
import time
from experiments import measure
from experiments.measurement import timing
timing.WARM_UP_SECONDS = 0
seconds, mirror = [], measure.mirror
def timed(*arguments, **keywords):
    start = time.monotonic()
    mirror(*arguments, **keywords)
    seconds.append(time.monotonic() - start)
measure.mirror = timed
measure.main()
print(sum(seconds))
"""

# The command, saying the name of each prompt as soon as its row was taken.
SAYS_WHAT_IS_LOGGED = """
from experiments import measure
from experiments.measurement import timing
timing.WARM_UP_SECONDS = 0
from experiments.tracking.tracker import JsonlTracker
log_prompt = JsonlTracker.log_prompt
def told(self, row):
    log_prompt(self, row)
    print("logged", row["name"], flush=True)
JsonlTracker.log_prompt = told
measure.main()
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides for a tiny target and many short prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder / "target", seed=1, context=256)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"ab {i}"}) + "\n" for i in range(NUM_PROMPTS)))
    return ["target=pretrained", f"target.path={folder / 'target'}", "target.dtype=float32", "device=cpu",
            "drafter=prompt_lookup", "prompts=jsonl", f"prompts.source.path={folder / 'prompts.jsonl'}",
            "prompts.count=null", "max_new_tokens=12", "repeats=1", "hugging_face=false"]  # fmt: skip


def command(program: str, folder: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-c", program, *overrides, f"hydra.run.dir={folder}"]


@pytest.mark.slow
@pytest.mark.parametrize(("server", "reason"), [(refusing, "Connection refused"), (silent, "not sent within")])
def test_a_server_out_of_reach_costs_seconds_and_no_result(
    tiny: list[str], tmp_path: Path, server: Callable[[], AbstractContextManager[str]], reason: str
) -> None:
    with server() as address:
        done = subprocess.run(
            command(MEASURES, tmp_path, *tiny, "prompts.count=3", "tracker.mode=online"),
            env=environment(tmp_path, address), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *lines, seconds = done.stdout.splitlines()
    assert float(seconds) < PROMISE
    (shown,) = (line for line in lines if address in line)
    assert reason in shown and shown.endswith(f"-m wandb sync {tmp_path}/wandb")
    (record,) = load_records(tmp_path)
    assert load_records(tmp_path / "wandb")[0].metrics == record.metrics
    rows = (tmp_path / record.name / "prompts.jsonl").read_text().splitlines()
    assert [json.loads(row) for row in rows] == record.prompts and len(rows) == 3
    assert (tmp_path / "table.md").exists()


@pytest.mark.slow
def test_killed_in_the_middle_every_finished_prompt_is_there(tiny: list[str], tmp_path: Path) -> None:
    with subprocess.Popen(
        command(SAYS_WHAT_IS_LOGGED, tmp_path, *tiny), stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        logged = []
        while len(logged) < NUM_LOGGED:
            line = process.stdout.readline()
            assert line, "it ended before it could be killed"
            logged += [line.split()[1]] if line.startswith("logged ") else []
        process.kill()
        logged += [line.split()[1] for line in process.stdout if line.startswith("logged ") and line.endswith("\n")]
    assert process.returncode == -9 and len(logged) < NUM_PROMPTS
    (file,) = tmp_path.glob("*/prompts.jsonl")
    whole = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert [row["name"] for row in whole][: len(logged)] == logged and len(whole) <= len(logged) + 1
    assert all(row["new_tokens"] and row["seconds"] > 0 and row["text"] for row in whole)
    assert not list(tmp_path.rglob("record.json"))
