"""The Tracker protocol for results of measured points, and the JSON files on disk, the authoritative copy."""

import json
import math
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from experiments.results.record import RECORD_FILE

PROMPTS_FILE = "prompts.jsonl"
ERROR_FILE = "error.json"
NO_UTF8 = "backslashreplace"  # bytes of a path that are not UTF-8 become JSON's own escapes


@dataclass(frozen=True)
class Point:
    """One configuration to measure."""

    folder: Path
    """Folder of the run, shared by all of its points."""

    name: str
    """Name of the point, unique in the run's folder and valid as a folder name."""

    study: str
    """Name of the study; points of one study are compared with each other."""

    settings: dict[str, Any]
    """Settings that distinguish the point (drafter, gamma, temperature, ...), flat."""

    config: dict[str, Any]
    """The whole resolved configuration, as plain dicts and lists."""

    models: dict[str, Any] = field(default_factory=dict)
    """Names, parameters and dtypes of target and drafter (`experiments.results.model_names.Models`)."""


class Tracker(Protocol):
    """Receives the results of one point after another.

    Calls per point: start, log_prompt once per prompt, then finish, or fail if anything was raised. `tracked` calls
    start and fail.
    """

    def start(self, point: Point) -> None:
        """Begin a point; called before anything is measured."""
        ...

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Log a decoded prompt; called outside timed sections."""
        ...

    def finish(self, record: dict[str, Any]) -> None:
        """Store the record; called once, after the whole point is measured."""
        ...

    def fail(self, error: BaseException) -> None:
        """Store the error; called when anything was raised, also by start or finish.

        Must close everything that start opened, even if start failed halfway.
        """
        ...

    def has_finished(self, point: Point) -> bool:
        """Whether this process or an earlier one finished the point; if so, it is not sent again."""
        ...


@dataclass(frozen=True)
class Overview:
    """Points that were reported together, with the files of their report."""

    folder: Path
    """Folder of the records."""

    study: str
    """Name of the study."""

    points: list[str]
    """A text per point that identifies its measurement."""

    settings: dict[str, Any]
    """Settings that all points share, flat."""

    rows: list[dict[str, Any]]
    """A row of the table per point; all rows have the same keys."""

    page: Path
    """The HTML page."""

    pictures: list[Path]
    """Plots, as PNG files."""

    models: dict[str, Any] = field(default_factory=dict)
    """Names, parameters and dtypes of the target, if all points share it (`experiments.results.model_names.Models`)."""


class OverviewTracker(Protocol):
    """Receives the overviews of comparisons and sweeps."""

    def log_overview(self, overview: Overview) -> None:
        """Log an overview; called once its points are measured and reported."""
        ...

    def has_overview(self, overview: Overview) -> bool:
        """Whether this process or an earlier one logged an overview of the same points."""
        ...


class TrainingTracker(Protocol):
    """Receives trained drafters."""

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """Log a drafter; called once it is trained.

        Args:
            folder: folder of the drafter, with facts as its provenance.
            facts: inputs and results of the training, as JSON values.
            study: name of the study; trainings of one study are compared with each other.
        """
        ...


class Mirror(Tracker, OverviewTracker, TrainingTracker, Protocol):
    """Everything that a tracker of conf/tracker receives."""


@contextmanager
def tracked(tracker: Tracker, point: Point) -> Iterator[None]:
    """Context manager that starts a point and calls fail if anything is raised.

    The body calls log_prompt and, last, finish.
    """
    try:
        tracker.start(point)
        yield
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to report
            tracker.fail(error)
        raise


class JsonlTracker:
    """Tracker that writes prompts.jsonl, then record.json or error.json, to FOLDER/NAME.

    Every line is on disk before log_prompt returns, and record.json is written atomically, so a killed process loses
    no logged prompt. NaN and infinities become null.
    """

    def __init__(self) -> None:
        self._point: Point | None = None
        self._prompts: TextIO | None = None

    def start(self, point: Point) -> None:
        """Open the point's folder.

        Raises:
            FileExistsError: the folder already holds a point of that name; nothing is overwritten.
        """
        path = point.folder / point.name / PROMPTS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._prompts = path.open("x", encoding="utf-8", errors=NO_UTF8)
        except FileExistsError:
            kind = "a measured" if (path.parent / RECORD_FILE).exists() else "an unfinished"
            raise FileExistsError(
                f"{path.parent} already holds {kind} point, which is never overwritten; "
                "set hydra.run.dir to another folder, or delete it"
            ) from None
        self._point = point

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Append one line and wait until it is on disk."""
        assert self._prompts is not None, "log_prompt comes after start"
        self._prompts.write(_to_json(row) + "\n")
        self._prompts.flush()
        os.fsync(self._prompts.fileno())

    def finish(self, record: dict[str, Any]) -> None:
        """Write record.json.

        Raises:
            TypeError: the record holds a value that is not JSON, such as a tensor.
        """
        assert self._point is not None, "finish comes after start"
        write_json(self._point.folder / self._point.name / RECORD_FILE, record)
        self.close()

    def fail(self, error: BaseException) -> None:
        """Write error.json: the point's settings, the error and its traceback."""
        if self._point is None:
            return
        point = self._point
        known = {"name": point.name, "study": point.study, "point": point.settings, "config": point.config}
        try:
            write_json(point.folder / point.name / ERROR_FILE, known | describe(error))
        finally:
            self.close()

    def has_finished(self, point: Point) -> bool:
        """Whether the point has a record.json."""
        return (point.folder / point.name / RECORD_FILE).exists()

    def close(self) -> None:
        """Close the prompts file and forget the point; logged prompts stay on disk."""
        if self._prompts is not None:
            self._prompts.close()
        self._prompts = self._point = None


class NoTracker:
    """Tracker that does nothing: the files on disk are not mirrored."""

    def start(self, point: Point) -> None:
        """Do nothing."""

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def finish(self, record: dict[str, Any]) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def has_finished(self, point: Point) -> bool:
        """Always true, so that no point is sent."""
        return True

    def log_overview(self, overview: Overview) -> None:
        """Do nothing."""

    def has_overview(self, overview: Overview) -> bool:
        """Always true, so that no overview is sent."""
        return True

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """Do nothing."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically and flush it to disk. NaN and infinities become null.

    Raises:
        TypeError: the content holds a value that is not JSON, such as a tensor.
    """
    unfinished = path.with_name(f"{path.name}.tmp")
    with open(unfinished, "w", encoding="utf-8", errors=NO_UTF8) as stream:
        stream.write(_to_json(content, indent=1) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(unfinished, path)


def describe(error: BaseException) -> dict[str, str]:
    """Type, message and traceback of an error, as in error.json."""
    return {
        "error": f"{type(error).__name__}: {error}",
        "traceback": "".join(traceback.format_exception(error)),
    }


def _to_json(value: Any, *, indent: int | None = None) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(value: Any) -> Any:
    """The same value with NaN and infinities replaced by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
