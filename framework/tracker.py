"""The Tracker protocol: where the results of a measured point go; and the files on disk, which are the truth."""

import json
import math
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

PROMPTS_FILE = "prompts.jsonl"
RECORD_FILE = "record.json"
ERROR_FILE = "error.json"
NO_UTF8 = "backslashreplace"  # bytes of a path that are no UTF-8 become JSON's own escapes


@dataclass(frozen=True)
class Point:
    """One configuration about to be measured."""

    folder: Path
    """The run's folder, shared by all of its points."""

    name: str
    """Unique in the run's folder and safe as a folder's name."""

    study: str
    """What the point is compared within."""

    settings: dict[str, Any]
    """What tells this point from others (drafter, gamma, temperature, ...), flat."""

    config: dict[str, Any]
    """The whole resolved configuration, as plain dicts and lists."""


class Tracker(Protocol):
    """Receives the results of one point after another.

    Per point: start, log_prompt once per prompt, then finish, or fail if anything was raised. `tracked` makes sure
    that every point ends.
    """

    def start(self, point: Point) -> None:
        """Called before anything is measured."""
        ...

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Called when a prompt has been decoded, outside timed stretches."""
        ...

    def finish(self, record: dict[str, Any]) -> None:
        """Called once, when everything of the point is measured."""
        ...

    def fail(self, error: BaseException) -> None:
        """Called when anything was raised, be it by start or finish. Must close what start opened, if it did."""
        ...

    def was_told(self, point: Point) -> bool:
        """Whether a point's finish was taken, by this process or an earlier one: it is not told again then."""
        ...


class TrainingTracker(Protocol):
    """Receives trained drafters."""

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """Called once a drafter is trained.

        Args:
            folder: holds the drafter, and facts as its provenance.
            facts: what it was made of and how good it became, as JSON values.
            study: what the training is compared within.
        """
        ...


@contextmanager
def tracked(tracker: Tracker, point: Point) -> Iterator[None]:
    """Start a point and see to its end: the body calls log_prompt and, last, finish; whatever it raises is told."""
    try:
        tracker.start(point)
        yield
    except BaseException as error:
        with suppress(Exception):  # the first error is the one to see
            tracker.fail(error)
        raise


class JsonlTracker:
    """Writes FOLDER/NAME/prompts.jsonl while prompts finish, then record.json, or error.json for a point that failed.

    Every line is on the disk before log_prompt returns, and a record appears whole or not at all, so a killed
    process loses nothing that was logged. Numbers that are not finite become null.
    """

    def __init__(self) -> None:
        self._point: Point | None = None
        self._prompts: TextIO | None = None

    def start(self, point: Point) -> None:
        """Open the point's folder.

        Raises:
            FileExistsError: a point of that name was already measured there; nothing is overwritten.
        """
        path = point.folder / point.name / PROMPTS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._prompts = path.open("x", encoding="utf-8", errors=NO_UTF8)
        except FileExistsError:
            raise FileExistsError(
                f"{path.parent} already holds a measured point, which is never overwritten; "
                "set hydra.run.dir to another folder, or delete it"
            ) from None
        self._point = point

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Append one line and wait until it is on the disk."""
        assert self._prompts is not None, "log_prompt comes after start"
        self._prompts.write(_to_json(row) + "\n")
        self._prompts.flush()
        os.fsync(self._prompts.fileno())

    def finish(self, record: dict[str, Any]) -> None:
        """Write record.json.

        Raises:
            TypeError: something in the record is not a JSON value, such as a tensor.
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

    def was_told(self, point: Point) -> bool:
        """Whether there is a record."""
        return (point.folder / point.name / RECORD_FILE).exists()

    def close(self) -> None:
        """End the point as it is, with the prompts that were logged."""
        if self._prompts is not None:
            self._prompts.close()
        self._prompts = self._point = None


class NoTracker:
    """Keeps nothing, of points and of trainings: for a run that wants no mirror of its files."""

    def start(self, point: Point) -> None:
        """Do nothing."""

    def log_prompt(self, row: dict[str, Any]) -> None:
        """Do nothing."""

    def finish(self, record: dict[str, Any]) -> None:
        """Do nothing."""

    def fail(self, error: BaseException) -> None:
        """Do nothing."""

    def was_told(self, point: Point) -> bool:
        """All that it wants to know."""
        return True

    def log_training(self, folder: Path, facts: dict[str, Any], *, study: str) -> None:
        """Do nothing."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that appears whole or not at all, and stays. Numbers that are not finite become null.

    Raises:
        TypeError: something in it is not a JSON value, such as a tensor.
    """
    unfinished = path.with_name(f"{path.name}.tmp")
    with open(unfinished, "w", encoding="utf-8", errors=NO_UTF8) as stream:
        stream.write(_to_json(content, indent=1) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(unfinished, path)


def describe(error: BaseException) -> dict[str, str]:
    """What an error.json says of the error."""
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
