"""Read records of a W&B project, and the contents of offline runs."""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import wandb

from experiments.results.record import RECORD_FILE, Record
from experiments.tracking.wandb_sending import probe

PROBE_SECONDS = 2.0
REQUEST_SECONDS = 20  # timeout of each request to the server


def read_project(key: str, path: str, api: Any = None) -> list[Record]:
    """Read the record of every measured point in a W&B project.

    A run without a record, such as one that failed, is reported as a RuntimeWarning and left out.

    Args:
        key: config key that names the project, for error messages.
        path: entity/project, or entity/project/study.
        api: a wandb.Api; None: a new one.

    Raises:
        ValueError: the path has another form.
        ConnectionError: the server does not answer, or rejects the login or the project.
    """
    entity, project, study = ([*path.split("/"), ""])[:3] if path.count("/") in (1, 2) else ("", "", "")
    if not (entity and project):
        raise ValueError(f"{key} is 'wandb:{path}'; allowed: wandb:entity/project or wandb:entity/project/study")
    # Runs of earlier versions have no study in their config; their group is the study alone.
    of_study = {"$or": [{"config.study": study}, {"group": study}]}
    wanted: dict[str, Any] = {"jobType": "measure"} | (of_study if study else {})
    try:
        api = api or _api()
        with tempfile.TemporaryDirectory() as folder:
            records = [_record_of(run, folder) for run in api.runs(f"{entity}/{project}", filters=wanted)]
    except (OSError, wandb.errors.Error, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConnectionError(
            f"{key} is 'wandb:{path}', which could not be read: {reason}. Without a server, give the folder of the "
            "records or of the offline runs, such as outputs/compare/..."
        ) from error
    return [record for record in records if record]


def _api() -> wandb.Api:
    probe(wandb.setup().settings.base_url, PROBE_SECONDS)
    return wandb.Api(timeout=REQUEST_SECONDS)


def _record_of(run: Any, folder: str) -> Record | None:
    """The record stored in a run as a file; None, with a warning, if it has none."""
    file = next(iter(run.files(names=[RECORD_FILE])), None)
    if file is None:
        warnings.warn(f"W&B run {run.name} ({run.state}) holds no record", RuntimeWarning, stacklevel=3)
        return None
    with file.download(root=folder, replace=True) as stream:
        return Record.from_json(json.load(stream, parse_constant=lambda _: None))


def read_offline_run(folder: Path) -> dict[str, Any]:
    """Read an offline run from its folder (.../wandb/offline-run-*), as W&B would show it.

    Returns:
        name, group, job_type, tags, config, summary, state ("finished", ...), exit_code, and history: a list of the
        values logged at each step.

    Raises:
        RuntimeError: wandb cannot read the run.
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
