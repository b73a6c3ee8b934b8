"""W&B's server is down, dumb or dead in the middle: a point never waits for it longer than 15 s, and loses nothing."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from experiments.tracking.wandb_reading import read_offline_run
from tests.support.wandb_server import PROMISE, DiesIn, Wandb, always, environment, refusing, serving, silent

REPOSITORY = Path(__file__).parents[3]
ROWS = 20

# As many points as asked for; what each of them cost is the last line.
TRACKS = f"""
import json, sys, time
from pathlib import Path
from experiments.tracking.wandb_tracker import WandbTracker
from experiments.tracking.tracker import Point, tracked
tracker = WandbTracker(**json.loads(sys.argv[2]))
seconds = []
for name in sys.argv[3:]:
    start = time.monotonic()
    with tracked(tracker, Point(folder=Path(sys.argv[1]), name=name, study="s", settings={{"gamma": 1}}, config={{}})):
        for number in range({ROWS}):
            tracker.log_prompt({{"name": str(number), "seconds": number / 2}})
        tracker.finish({{"point": {{}}, "metrics": {{"tau": 1.5}}}})
    seconds.append(time.monotonic() - start)
print(json.dumps(seconds), flush=True)
"""

# Imports what takes seconds once, and then runs each program in a fork of its own.
FORKS = """
import json, os, signal, sys
import experiments.tracking.wandb_tracker
from wandb.sdk.data_types._private import MEDIA_TMP
for line in sys.stdin:
    os.makedirs(MEDIA_TMP.name, exist_ok=True)  # made by the import, and removed by each fork that ends
    child = os.fork()
    if child == 0:
        program, folder, environment, sys.argv[1:] = json.loads(line)
        os.environ.clear()
        os.environ.update(environment)
        for number, name in enumerate(("/dev/null", folder + "/stdout", folder + "/stderr")):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
        os.chdir(folder + "/elsewhere")
        signal.alarm(60)
        exec(program, {"__name__": "__main__"})
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

# The same as TRACKS, where a look-up of a name takes longer than anybody waits.
LOOKS_UP_FOR_A_MINUTE = "import socket, time; socket.getaddrinfo = lambda *_, **__: time.sleep(60)\n" + TRACKS

# The same, where each thing that Python asks of a network is told.
TELLS_OF_NETWORK = (
    """
import sys
def tell(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and not isinstance(arguments[1], tuple):
        return  # the socket file of W&B's service
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        print("network:", event, arguments[1:], flush=True)
sys.addaudithook(tell)
"""
    + TRACKS
)


def refuses_rows(host: str, path: str, body: bytes) -> tuple[int, dict]:
    return (404, {}) if path.endswith("/file_stream") else Wandb()(host, path, body)


def options(**changed: object) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(REPOSITORY / "conf" / "tracker" / "wandb.yaml"))
    assert isinstance(config, dict)
    del config["_target_"]
    return {str(key): value for key, value in config.items()} | changed


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process that runs programs in forks."""
    given = environment(tmp_path_factory.mktemp("forks"), "")
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def track(
    forks: subprocess.Popen[str] | None,
    folder: Path,
    environment: dict[str, str],
    *,
    points: tuple[str, ...] = ("only",),
    program: str = TRACKS,
    before: tuple[str, ...] = (),
    **changed: object,
) -> tuple[list[str], list[float]]:
    """Track points in a process of their own: a fork, or without one a fresh process, which `before` may watch.

    Returns:
        the lines it said, and the seconds each point took.
    """
    arguments = [str(folder), json.dumps(options(**changed)), *points]
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    if forks is None:
        done = subprocess.run(
            [*before, sys.executable, "-c", program, *arguments], cwd=elsewhere, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        status, said, errors = done.returncode, done.stdout, done.stderr
    else:
        assert forks.stdin is not None and forks.stdout is not None
        print(json.dumps([program, str(folder), environment, arguments]), file=forks.stdin, flush=True)
        status = int(forks.stdout.readline())
        said, errors = (folder / "stdout").read_text(), (folder / "stderr").read_text()
    assert status == 0, errors
    assert list(elsewhere.iterdir()) == [], "all files belong to the run's folder"
    *lines, seconds = said.splitlines()
    return lines, json.loads(seconds)


def assert_all_is_kept(folder: Path, points: tuple[str, ...] = ("only",)) -> None:
    """The points are there as offline runs to be sent, with the summary and every row: as a step and in the table."""
    assert not list(folder.rglob("*.wandb.synced")), "a later wandb sync would pass it by"
    runs = {run["name"]: (run, path) for path in folder.glob("wandb/offline-run-*") for run in [read_offline_run(path)]}
    assert sorted(runs) == sorted(points)
    for run, path in runs.values():
        assert (run["state"], run["exit_code"], run["summary"]["tau"]) == ("finished", 0, 1.5)
        seconds = [step["prompt/seconds"] for step in run["history"] if "prompt/seconds" in step]
        assert seconds == [number / 2 for number in range(ROWS)]
        (table,) = path.glob("files/media/table/prompts*.json")
        assert json.loads(table.read_text())["data"] == [[str(number), number / 2] for number in range(ROWS)]


# Who is at the address, and what is said of it.
FAULTS = {
    "nothing listens": (refusing, "Connection refused"),
    "never answers": (silent, "not sent within"),
    "always 401": (always(401, "this key is unknown"), "this key is unknown"),
    # On a machine that is busy the time is over before W&B has noticed.
    "refuses rows": (lambda: serving(refuses_rows), "Some run data will not be synced|not sent within"),
    "dies after the run was opened": (lambda: serving(DiesIn("/file_stream")), "not sent within"),
    "dies among the files": (lambda: serving(DiesIn("/upload/")), "not sent within"),
}


# Those that are waited for are given less time than the yaml gives them.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sync_seconds"),
    [("nothing listens", 8), ("always 401", 8), ("never answers", 2), ("dies among the files", 3)],
)
def test_a_fault_of_the_server_loses_nothing(
    forks: subprocess.Popen[str], tmp_path: Path, fault: str, sync_seconds: float
) -> None:
    server, reason = FAULTS[fault]
    with server() as address:
        lines, seconds = track(
            forks, tmp_path, environment(tmp_path, address), mode="online", sync_seconds=sync_seconds
        )
    assert seconds[0] < PROMISE
    assert_one_line(lines, address, reason, tmp_path)
    assert_all_is_kept(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["never answers", "refuses rows", "dies after the run was opened"])
def test_with_the_yaml_as_it_is_no_point_waits_longer_than_promised(
    forks: subprocess.Popen[str], tmp_path: Path, fault: str
) -> None:
    server, reason = FAULTS[fault]
    with server() as address:
        lines, seconds = track(forks, tmp_path, environment(tmp_path, address), points=("a", "b"), mode="online")
    # Even both together: after the first, nobody waits again. Once more, and it would be 2 * 8 s.
    assert sum(seconds) < PROMISE
    assert_one_line(lines, address, reason, tmp_path)
    assert_all_is_kept(tmp_path, ("a", "b"))


def assert_one_line(lines: list[str], address: str, reason: str, folder: Path) -> None:
    """Where it failed, why, and the command that mends it."""
    (line,) = lines
    command = shlex.join([sys.executable, "-m", "wandb", "sync", str(folder / "wandb")])
    assert address in line and re.search(reason, line) and line.endswith(f": {command}")


def test_the_waits_in_the_yaml_leave_three_seconds_for_the_rest() -> None:
    assert options()["probe_seconds"] + options()["sync_seconds"] <= PROMISE - 3


@pytest.mark.slow
def test_without_a_key_the_run_is_kept(forks: subprocess.Popen[str], tmp_path: Path) -> None:
    with serving(Wandb()) as address:
        lines, seconds = track(forks, tmp_path, environment(tmp_path, address, key=None), mode="online")
    assert seconds[0] < PROMISE
    assert_one_line(lines, address, "No API key configured", tmp_path)
    assert_all_is_kept(tmp_path)


@pytest.mark.slow
def test_a_name_that_is_looked_up_for_a_minute_costs_the_probe_only(
    forks: subprocess.Popen[str], tmp_path: Path
) -> None:
    with serving(Wandb()) as address:
        lines, seconds = track(
            forks,
            tmp_path,
            environment(tmp_path, address),
            program=LOOKS_UP_FOR_A_MINUTE,
            mode="online",
            probe_seconds=0.5,
        )
    assert seconds[0] < PROMISE
    assert_one_line(lines, address, "no connection within 0.5 s", tmp_path)
    assert_all_is_kept(tmp_path)


@pytest.mark.slow
def test_what_a_dead_server_did_not_take_a_later_sync_sends(forks: subprocess.Popen[str], tmp_path: Path) -> None:
    """Half of the first point was sent; the command that was printed sends the whole of both, once the server lives."""
    with serving(DiesIn("/upload/")) as address:
        given = environment(tmp_path, address)
        (line,), _ = track(forks, tmp_path, given, points=("a", "b"), mode="online", sync_seconds=3)
    wandb = Wandb()
    with serving(wandb) as address:
        command = line.split(": ")[-1]
        given = environment(tmp_path, address)
        subprocess.run(command, shell=True, cwd=tmp_path, env=given, check=True, capture_output=True, timeout=60)
    assert_sent(wandb, points=2)


@pytest.mark.slow
def test_a_server_that_answers_gets_everything(forks: subprocess.Popen[str], tmp_path: Path) -> None:
    wandb = Wandb()
    with serving(wandb) as address:
        lines, _ = track(forks, tmp_path, environment(tmp_path, address), mode="online")
    assert lines == [f"W&B: {address}/e/p/runs/{run}" for run in wandb.history]
    assert_sent(wandb)
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb.synced"))) == 1


@pytest.mark.slow
def test_a_proxy_leads_to_the_server(forks: subprocess.Popen[str], tmp_path: Path) -> None:
    wandb = Wandb()
    with serving(wandb) as proxy:
        track(forks, tmp_path, environment(tmp_path, "http://wandb.invalid") | {"HTTP_PROXY": proxy}, mode="online")
    assert_sent(wandb)


def assert_sent(wandb: Wandb, *, points: int = 1) -> None:
    assert len(wandb.history) == points
    for run, steps in wandb.history.items():
        assert [steps[number]["prompt/seconds"] for number in range(ROWS)] == [number / 2 for number in range(ROWS)]
        assert wandb.summaries[run]["tau"] == 1.5


# Offline


@pytest.mark.slow
def test_offline_asks_nothing_of_a_network(tmp_path: Path) -> None:
    """Python's own calls are all seen. Of W&B's service, which is another program, is seen what goes to the server or
    through a proxy; a look-up of a name is not, and the next test sees it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        proxied = environment(tmp_path, address) | {"HTTP_PROXY": address, "HTTPS_PROXY": address}
        lines, _ = track(None, tmp_path, proxied, program=TELLS_OF_NETWORK, mode="offline")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert lines == []
    assert_all_is_kept(tmp_path)


def can_trace() -> bool:
    return bool(shutil.which("strace")) and subprocess.run(["strace", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="needs strace, and leave to use it")
def test_offline_no_process_opens_a_connection(tmp_path: Path) -> None:
    """Every process: look-ups of names are connections to port 53, and none but the service's own socket is opened."""
    trace = tmp_path / "trace"
    before = ("strace", "-f", "-o", str(trace), "-e", "trace=connect,sendto,sendmsg,sendmmsg")
    # Without a server given, it would be W&B's own.
    given = environment(tmp_path, "")
    del given["WANDB_BASE_URL"]
    track(None, tmp_path, given, before=before, mode="offline")
    calls = [line for line in trace.read_text().splitlines() if "sa_family=" in line]
    assert calls, "the service's own socket at least"
    assert [call for call in calls if "sa_family=AF_UNIX" not in call] == []
