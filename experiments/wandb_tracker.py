"""Mirrors measured points to Weights & Biases; the only file that imports wandb."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import numpy as np
import wandb
from wandb.errors import CommError, UsageError

from framework.tracker import Point

Mode = Literal["offline", "online", "disabled"]


class WandbTracker:
    """One W&B run per point: its config, prompts as they finish, accepted tokens per round, stage times, all metrics.

    Runs are grouped by study and tagged with drafter, verifier and temperature. W&B keeps its files in the run's
    folder, under wandb/. A run asked for online that cannot be opened is kept offline, and a line says how to send it.
    """

    def __init__(
        self, *, project: str, entity: str | None, mode: Mode, probe_seconds: float, init_seconds: float
    ) -> None:
        """
        Args:
            project: where the runs appear.
            entity: the user or team that owns the project; None takes the account's own.
            mode: "offline", "online" or "disabled".
            probe_seconds: online, how long the server may take to accept a connection.
            init_seconds: online, how long it may take to open a run.

        Raises:
            ValueError: an unknown mode.
        """
        if mode not in get_args(Mode):
            raise ValueError(f"tracker.mode is {mode!r}; allowed: {', '.join(get_args(Mode))}")
        self._project = project
        self._entity = entity
        self._mode = mode
        self._probe_seconds = probe_seconds
        self._init_seconds = init_seconds
        self._run: wandb.Run | None = None
        self._rows: list[dict[str, Any]] = []

    def start(self, point: Point) -> None:
        """Open the run, online only if that was asked for and the server answers."""
        # Read by W&B's service when it starts; offline runs would otherwise look for a server to report errors to.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        self._rows = []
        if self._mode != "online":
            self._run = self._open(point, self._mode)
        else:
            self._run = self._open_online(point)
        self._run.define_metric("prompt/*", summary="none")

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Add a step to the per-prompt series, and a row to the table that finish sends."""
        self._rows.append(row)
        numbers = {f"prompt/{key}": value for key, value in row.items() if isinstance(value, int | float)}
        self._opened().log(numbers)

    def finish(self, record: dict[str, Any]) -> None:
        """Send table, histogram and summary, and close the run."""
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
        """Close the run as failed, with the error in its summary."""
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

    def _open(self, point: Point, mode: Mode) -> wandb.Run:
        settings = point.settings
        tags = [str(settings[key]) for key in ("drafter", "verifier") if settings.get(key)]
        if settings.get("temperature") is not None:
            tags.append(f"T={settings['temperature']:g}")
        return wandb.init(
            project=self._project,
            entity=self._entity,
            mode=mode,
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
                init_timeout=self._init_seconds,
                x_disable_stats=True,  # a sampler at work would be in the walltimes
            ),
        )

    def _open_online(self, point: Point) -> wandb.Run:
        address = wandb.setup().settings.base_url
        try:
            _probe(address, self._probe_seconds)
            run = self._open(point, "online")
        except (OSError, CommError, UsageError) as error:
            run = self._open(point, "offline")
            reason = str(error).split("\n")[0]
            print(f"W&B at {address}: {reason}. Kept offline; send it later with: wandb sync {Path(run.dir).parent}")
        else:
            print(f"W&B: {run.url}")
        return run


def _probe(address: str, seconds: float) -> None:
    """Raise OSError if nobody accepts a connection at this URL: wandb.init itself would try for minutes."""
    parts = urlsplit(address)
    port = parts.port or (80 if parts.scheme == "http" else 443)
    socket.create_connection((parts.hostname or "", port), timeout=seconds).close()


def read_offline_run(folder: Path) -> dict[str, Any]:
    """Read an offline run back from its folder (.../wandb/offline-run-*), as W&B itself would show it.

    Returns:
        name, group, job_type, tags, config, summary, state ("finished", ...) and exit_code.

    Raises:
        RuntimeError: wandb cannot read it.
    """
    overview = json.loads(_inspect(folder, "--summary", "--json"))
    records = (json.loads(line) for line in _inspect(folder, "--json").splitlines())
    run = next(record["run"] for record in records if record["type"] == "run")
    kept = {key: overview[key] for key in ("name", "tags", "config", "summary", "state", "exit_code")}
    return {**kept, "group": run["run_group"], "job_type": run["job_type"]}


def _inspect(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "wandb", "leet", "inspect", *options, str(folder)]
    environment = {**os.environ, "WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"wandb cannot read {folder}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
