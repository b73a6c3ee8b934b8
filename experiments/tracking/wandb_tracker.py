"""Tracker that mirrors measured points and trainings to Weights & Biases."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import wandb

from experiments.results.record import RECORD_FILE, Record
from experiments.tracking import wandb_contents as contents
from experiments.tracking.tracker import Overview, Point
from experiments.tracking.wandb_artifacts import log_trained, use_trained
from experiments.tracking.wandb_sending import probe, send, sync_command

RUN_FILE = "wandb_run.txt"  # in the folder of a point: path of the run that holds all of it
OVERVIEW_FILE = "wandb_overview.txt"  # path of the run that holds the folder's overview, then the points, one a line

Mode = Literal["offline", "online", "disabled"]


class WandbTracker:
    """Tracker with one W&B run per point: config, prompts as they finish, metrics, charts and the record.

    Runs are grouped by study, distinguished by job type, and tagged with drafter, verifier and temperature. The run of
    a training logs its drafter as an artifact; runs of points measured with that drafter use the artifact.

    Every run is written offline, in the run's folder under wandb/, without network access. In mode online, `wandb
    sync` then sends it in a separate process with a timeout: W&B's own online runs can wait indefinitely for a lost
    server and lose their summary. Unsent runs stay on disk, and one printed line names the command that sends them.
    One tracker serves all points of a process, so that it waits for a dead server only once.
    """

    def __init__(
        self, *, project: str, entity: str | None, mode: Mode, probe_seconds: float, sync_seconds: float
    ) -> None:
        """
        Args:
            project: W&B project of the runs.
            entity: user or team that owns the project; None: the account's default.
            mode: "offline", "online" or "disabled".
            probe_seconds: online, timeout for a connection to the server.
            sync_seconds: online, timeout for sending one point.

        Raises:
            ValueError: the mode is unknown, or a timeout is not a number between 0 and 1000, both excluded.
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
        self._kept_offline: set[Path] = set()  # folders already reported as kept offline
        self._run: wandb.Run | None = None
        self._point: Point | None = None
        self._rows: list[dict[str, Any]] = []

    def start(self, point: Point) -> None:
        """Open a W&B run for the point."""
        self._point, self._rows = point, []
        self._run = self._open(
            point.folder,
            name=contents.name_of(point),
            group=contents.group_of(point),
            job_type="measure",
            tags=contents.tags_of(point.settings),
            config=contents.config_of(point),
        )

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Log a step of the prompt series, and keep the row for the tables written by finish."""
        self._rows.append(row)
        self._opened().log(contents.prompt_step(len(self._rows), row))

    def finish(self, record: dict[str, Any]) -> None:
        """Log series, charts and numbers, save the record, close the run, and send it in mode online."""
        run = self._opened()
        assert self._point is not None
        run.config.update({key: record[key] for key in contents.ORIGIN if key in record})
        measured = Record.from_json(record)
        for step in contents.position_steps(measured):
            run.log(step)
        # Logged, not only put in the summary, so that W&B draws a panel for each by default.
        run.log(contents.numbers_of(measured) | contents.charts_of(measured, self._rows))
        if not run.disabled:
            use_trained(run, contents.drafter_node(self._point))
            file = Path(run.dir) / RECORD_FILE
            file.write_text(json.dumps(record), encoding="utf-8")
            run.save(file, base_path=run.dir, policy="now")
        self._close(exit_code=0)
        if not run.disabled:
            # The run is complete now, even if sending fails.
            place = self._run_file(self._point)
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"{Path(run.dir).parent}\n", encoding="utf-8")
        self._send(run)

    def fail(self, error: BaseException) -> None:
        """Close the run as failed, with the error in its summary, and send it in mode online."""
        if self._run is None:
            return
        try:
            self._run.summary.update({"error": f"{type(error).__name__}: {error}"})
        finally:
            self._send(self._close(exit_code=1))

    def has_finished(self, point: Point) -> bool:
        """Whether a run, sent or unsent, holds the whole point."""
        return self._mode == "disabled" or self._run_file(point).exists()

    def log_overview(self, overview: Overview) -> None:
        """Log an overview as a run of its own: table, page and pictures."""
        folder = overview.folder.absolute()
        self._run = self._open(
            folder,
            name=f"overview {folder.name}",
            group=contents.group_of(overview),
            job_type="overview",
            tags=["overview"],
            config={**overview.settings, "points": len(overview.points)},
        )
        try:
            self._run.log(contents.overview_contents(overview))
        except BaseException as error:
            self.fail(error)
            raise
        run = self._close(exit_code=0)
        if not run.disabled:
            lines = [str(Path(run.dir).parent), *overview.points]
            (folder / OVERVIEW_FILE).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._send(run)

    def has_overview(self, overview: Overview) -> bool:
        """Whether a run, sent or unsent, holds an overview of the same points."""
        file = overview.folder / OVERVIEW_FILE
        return self._mode == "disabled" or (
            file.exists() and file.read_text(encoding="utf-8").splitlines()[1:] == overview.points
        )

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """Log a training as a run of its own, with the drafter as an artifact."""
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
        """Send a closed run in mode online; after the first failure, later runs are kept offline without trying."""
        if self._mode != "online":
            return
        folder, address = Path(run.dir).parent, run.settings.base_url
        kept = f"kept offline; to send them: {sync_command(folder.parent)}"
        if not self._gave_up:
            try:
                probe(address, self._probe_seconds)
                print(f"W&B: {send(folder, self._sync_seconds)}")
                return
            except (OSError, ValueError) as error:
                self._gave_up = True
                print(f"W&B at {address}: {str(error).rstrip('.')}. This point and all later ones are {kept}")
        elif folder.parent not in self._kept_offline:
            print(f"W&B: {kept}")
        self._kept_offline.add(folder.parent)

    def _open(
        self, folder: Path, *, name: str, group: str, job_type: str, tags: Sequence[str], config: dict[str, Any]
    ) -> wandb.Run:
        # W&B's service reads these when it starts; by default even offline runs report errors to a server.
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
            # W&B's default would return a run that is still open.
            reinit="create_new",
            settings=wandb.Settings(
                console="off",  # progress bars are not results
                x_disable_stats=True,  # sampling system stats would distort wall times
            ),
        )
        contents.define_series(run)
        return run
