"""Mirrors measured points and trainings to Weights & Biases."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import wandb

from experiments import wandb_contents as contents
from experiments.wandb_artifacts import log_trained, use_trained
from experiments.wandb_sending import probe, send
from framework.tracker import RECORD_FILE, Point

RUN_FILE = "wandb_run.txt"  # beside a point's record: the run that holds all of it

Mode = Literal["offline", "online", "disabled"]


class WandbTracker:
    """One W&B run per point: its config, prompts as they finish, all metrics, charts, and the record itself.

    Runs are grouped by study, told apart by job type, and tagged with drafter, verifier and temperature. A training's
    run logs its drafter as an artifact, and the runs of points that were measured with it use that.

    Every run is written offline, in the run's folder under wandb/, which asks nothing of a network. Online, `wandb
    sync` then sends it, in a process of its own that is stopped when its time is over: W&B's online runs can wait
    without end for a server that went away, and lose their summary. What was not sent stays on the disk, and one line
    says how to send it. One tracker serves all points of a process, so that a dead server is waited for once.
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
        self._kept_offline: set[Path] = set()  # folders of runs of which that was said
        self._run: wandb.Run | None = None
        self._point: Point | None = None
        self._rows: list[dict[str, Any]] = []

    def start(self, point: Point) -> None:
        """Open the run."""
        self._point, self._rows = point, []
        self._run = self._open(
            point.folder,
            name=point.name,
            group=point.study,
            job_type="measure",
            tags=contents.tags_of(point.settings),
            config=contents.config_of(point),
        )

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Add a step to the per-prompt series, and a row to the tables that finish writes."""
        self._rows.append(row)
        self._opened().log(contents.prompt_step(len(self._rows), row))

    def finish(self, record: dict[str, Any]) -> None:
        """Write series, charts and numbers, keep the record, close the run, and send it if that was asked for."""
        run = self._opened()
        assert self._point is not None
        run.config.update({key: record[key] for key in contents.ORIGIN if key in record})
        for step in contents.position_steps(record):
            run.log(step)
        # Logged, not only summed up: W&B then draws a panel for each without being asked.
        run.log(contents.numbers_of(record) | contents.charts_of(record, self._rows))
        if not run.disabled:
            use_trained(run, contents.drafter_node(self._point))
            file = Path(run.dir) / RECORD_FILE
            file.write_text(json.dumps(record), encoding="utf-8")
            run.save(file, base_path=run.dir, policy="now")
        self._close(exit_code=0)
        if not run.disabled:
            # The run holds all by now, whatever becomes of the sending.
            place = self._run_file(self._point)
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"{Path(run.dir).parent}\n", encoding="utf-8")
        self._send(run)

    def fail(self, error: BaseException) -> None:
        """Close the run as failed, with the error in its summary, and send it if that was asked for."""
        if self._run is None:
            return
        try:
            self._run.summary.update({"error": f"{type(error).__name__}: {error}"})
        finally:
            self._send(self._close(exit_code=1))

    def was_told(self, point: Point) -> bool:
        """Whether a run holds all of the point, be it sent or not."""
        return self._mode == "disabled" or self._run_file(point).exists()

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """A run of its own, which holds the drafter as an artifact."""
        settings = {key: facts[key] for key in ("drafter", "target_fingerprint", "text", "command", "versions")}
        self._run = self._open(
            folder,
            name=folder.name,
            group=study,
            job_type="train",
            tags=contents.tags_of(facts),
            config={**settings, "config": facts["config"]},
        )
        try:
            for step in contents.training_steps(facts):
                self._run.log(step)
            self._run.log(contents.training_numbers(facts))
            log_trained(self._run, folder)
        except BaseException as error:
            self.fail(error)
            raise
        self._send(self._close(exit_code=0))

    @staticmethod
    def _run_file(point: Point) -> Path:
        return point.folder / point.name / RUN_FILE

    def _opened(self) -> wandb.Run:
        assert self._run is not None, "start comes first"
        return self._run

    def _close(self, *, exit_code: int) -> wandb.Run:
        run, self._run = self._opened(), None
        run.finish(exit_code=exit_code)
        return run

    def _send(self, run: wandb.Run) -> None:
        """Online, send a closed run; after one that could not be sent, no later one waits for the server again."""
        if self._mode != "online":
            return
        folder, address = Path(run.dir).parent, run.settings.base_url
        kept = f"kept offline, to be sent with: wandb sync {folder.parent}"
        if not self._gave_up:
            try:
                probe(address, self._probe_seconds)
                print(f"W&B: {send(folder, self._sync_seconds)}")
                return
            except (OSError, ValueError) as error:
                self._gave_up = True
                print(f"W&B at {address}: {str(error).rstrip('.')}. This point and those after it are {kept}")
        elif folder.parent not in self._kept_offline:
            print(f"W&B: {kept}")
        self._kept_offline.add(folder.parent)

    def _open(
        self, folder: Path, *, name: str, group: str, job_type: str, tags: Sequence[str], config: dict[str, Any]
    ) -> wandb.Run:
        # Read by W&B's service when it starts; offline runs would otherwise look for a server to report errors to.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        run = wandb.init(
            project=self._project,
            entity=self._entity,
            mode="disabled" if self._mode == "disabled" else "offline",
            dir=folder,
            name=name,
            group=group,
            job_type=job_type,
            tags=tags,
            config=config,
            # W&B's default would hand back a run that somebody left open.
            reinit="create_new",
            settings=wandb.Settings(
                console="off",  # progress bars are not results
                x_disable_stats=True,  # a sampler at work would be in the walltimes
            ),
        )
        contents.define_series(run)
        return run
