"""Mirrors measured points to Weights & Biases; the only file that imports wandb."""

import json
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import numpy as np
import wandb

from framework.tracker import Point

Mode = Literal["offline", "online", "disabled"]


class WandbTracker:
    """One W&B run per point: its config, prompts as they finish, accepted tokens per round, stage times, all metrics.

    Runs are grouped by study and tagged with drafter, verifier and temperature. Every run is written offline, in the
    run's folder under wandb/, which asks nothing of a network. Online, `wandb sync` then sends it, in a process of its
    own that is stopped when its time is over: W&B's online runs can wait without end for a server that went away, and
    lose their summary. What was not sent stays on the disk, and one line says how to send it.
    """

    def __init__(
        self, *, project: str, entity: str | None, mode: Mode, probe_seconds: float, sync_seconds: float
    ) -> None:
        """
        Args:
            project: where the runs appear.
            entity: the user or team that owns the project; None takes the account's own.
            mode: "offline", "online" or "disabled".
            probe_seconds: online, how long the server may take to accept a connection.
            sync_seconds: online, how long sending a point may take.

        Raises:
            ValueError: an unknown mode, or a time that is none.
        """
        if mode not in get_args(Mode):
            raise ValueError(f"tracker.mode is {mode!r}; allowed: {', '.join(get_args(Mode))}")
        for key, seconds in (("probe_seconds", probe_seconds), ("sync_seconds", sync_seconds)):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1000:
                raise ValueError(f"tracker.{key} is {seconds!r}; allowed: a number of seconds above 0 and below 1000")
        self._project = project
        self._entity = entity
        self._mode = mode
        self._probe_seconds = probe_seconds
        self._sync_seconds = sync_seconds
        self._gave_up = False
        self._run: wandb.Run | None = None
        self._rows: list[dict[str, Any]] = []

    def start(self, point: Point) -> None:
        """Open the run."""
        # Read by W&B's service when it starts; offline runs would otherwise look for a server to report errors to.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        self._rows = []
        self._run = self._open(point)
        self._run.define_metric("prompt/*", summary="none")

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Add a step to the per-prompt series, and a row to the table that finish writes."""
        self._rows.append(row)
        numbers = {f"prompt/{key}": value for key, value in row.items() if isinstance(value, int | float)}
        self._opened().log(numbers)

    def finish(self, record: dict[str, Any]) -> None:
        """Write table, histogram and summary, close the run, and send it if that was asked for."""
        run = self._opened()
        origin = ("command", "commit", "versions", "machine", "seeds")
        run.config.update({key: record[key] for key in origin if key in record})
        logged: dict[str, Any] = {}
        if self._rows:
            columns: list[str | int] = list(dict.fromkeys(key for row in self._rows for key in row))
            data = [[row.get(str(column)) for column in columns] for row in self._rows]
            logged["prompts"] = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
        if accepted := record.get("rounds_histogram", {}).get("accepted"):
            edges = np.arange(len(accepted) + 1)
            logged["accepted_per_round"] = wandb.Histogram(np_histogram=(np.asarray(accepted), edges))
        if logged:
            run.log(logged)
        stages = record.get("stages_ms_per_round", {})
        run.summary.update(
            {
                **record.get("metrics", {}),
                **{f"stage_ms_per_round/{stage}": value for stage, value in stages.items()},
                "walltime_seconds": record.get("seconds"),
            }
        )
        self._close(exit_code=0)

    def fail(self, error: BaseException) -> None:
        """Close the run as failed, with the error in its summary, and send it if that was asked for."""
        if self._run is None:
            return
        try:
            self._run.summary.update({"error": f"{type(error).__name__}: {error}"})
        finally:
            self._close(exit_code=1)

    def _opened(self) -> wandb.Run:
        assert self._run is not None, "start comes first"
        return self._run

    def _close(self, *, exit_code: int) -> None:
        run, self._run = self._opened(), None
        run.finish(exit_code=exit_code)
        if self._mode == "online" and not self._gave_up:
            self._send(Path(run.dir).parent, run.settings.base_url)

    def _send(self, folder: Path, address: str) -> None:
        """Send a closed run; after one that could not be sent, later points do not wait for the server again."""
        try:
            _probe(address, self._probe_seconds)
            print(f"W&B: {_sync(folder, self._sync_seconds)}")
        except (OSError, ValueError) as error:
            self._gave_up = True
            print(
                f"W&B at {address}: {str(error).rstrip('.')}. This point and those after it are kept offline; "
                f"send them with: wandb sync {folder.parent}"
            )

    def _open(self, point: Point) -> wandb.Run:
        settings = point.settings
        tags = [str(settings[key]) for key in ("drafter", "verifier") if settings.get(key)]
        if settings.get("temperature") is not None:
            tags.append(f"T={settings['temperature']:g}")
        return wandb.init(
            project=self._project,
            entity=self._entity,
            mode="disabled" if self._mode == "disabled" else "offline",
            dir=point.folder,
            name=point.name,
            group=point.study,
            job_type="measure",
            tags=tags,
            config={**settings, "config": point.config},
            # W&B's default would hand back a run that somebody left open.
            reinit="create_new",
            settings=wandb.Settings(
                console="off",  # progress bars are not results
                x_disable_stats=True,  # a sampler at work would be in the walltimes
            ),
        )


def _probe(address: str, seconds: float) -> None:
    """Raise OSError if nobody accepts a connection at this URL: `wandb sync` would go on trying."""
    parts = urlsplit(address)
    host = parts.hostname or ""
    if parts.scheme in getproxies() and not proxy_bypass(host):
        return  # only the proxy can tell
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answer: Future[None] = Future()

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            answer.set_result(None)
        except Exception as error:
            answer.set_exception(error)

    # A thread, because create_connection's own timeout holds for neither the name's look-up nor the addresses together.
    Thread(target=connect, daemon=True).start()
    try:
        answer.result(timeout=seconds)
    except TimeoutError:
        raise TimeoutError(f"no connection within {seconds:g} s") from None


def _sync(folder: Path, seconds: float) -> str:
    """Send an offline run.

    Returns:
        where it can be seen.

    Raises:
        ConnectionError: it was not sent, with W&B's last words.
        TimeoutError: it was not sent in time.
    """
    command = [sys.executable, "-m", "wandb", "sync", str(folder)]
    # Its own log files belong to the run's, and a silent one would not say where the run can be seen.
    environment = {**os.environ, "WANDB_DIR": str(folder.parent.parent), "WANDB_SILENT": "false"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not sent within {seconds:g} s") from None
    errors = re.findall(r"^(?:wandb: ERROR|Error:) (.*)$", done.stderr, re.MULTILINE)
    markers = list(folder.glob("*.wandb.synced"))
    # The exit status is 0 also where the server refused, and the marker is set also where rows were refused.
    if errors or not markers:
        for marker in markers:
            marker.unlink()  # or the next `wandb sync` would pass the run by
        raise ConnectionError(errors[-1] if errors else "wandb sync broke off")
    address = re.search(r" at (https?://\S+)", done.stderr)
    return address[1] if address else f"{folder} is sent"


def read_offline_run(folder: Path) -> dict[str, Any]:
    """Read an offline run back from its folder (.../wandb/offline-run-*), as W&B itself would show it.

    Returns:
        name, group, job_type, tags, config, summary, state ("finished", ...), exit_code, and history: what was logged,
        step by step.

    Raises:
        RuntimeError: wandb cannot read it.
    """
    overview = json.loads(_inspect(folder, "--summary", "--json"))
    records = [json.loads(line) for line in _inspect(folder, "--json").splitlines()]
    run = next(record["run"] for record in records if record["type"] == "run")
    history = [record["history"]["item"] for record in records if record["type"] == "history"]
    kept = {key: overview[key] for key in ("name", "tags", "config", "summary", "state", "exit_code")}
    return {**kept, "group": run["run_group"], "job_type": run["job_type"], "history": history}


def _inspect(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *options, str(folder)]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"wandb cannot read {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
