"""Records of measured points: read from disk and grouped for comparison."""

import json
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.results import model_names
from experiments.results.record import RECORD_FILE, Record
from experiments.tracking.tracker import ERROR_FILE

# Settings that may differ between rows of a group; points that differ in any other setting are in separate groups.
ROW_SETTINGS = ("drafter", "options", "verifier", "guarantee", "gamma_policy", "gamma")


def load_records(folder: Path) -> list[Record]:
    """Read every record.json below a folder, ordered by the paths of the points; see `located_records`."""
    return list(located_records(folder).values())


def located_records(folder: Path) -> dict[Path, Record]:
    """Read every record.json below a folder, keyed by file and ordered by the paths of the points.

    A copy in an offline W&B run is read only if the point's own record is not below the folder. A file that is not a
    record, and a point that failed, are reported by path as a RuntimeWarning and left out.

    Raises:
        FileNotFoundError: the folder does not exist.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} to read records from")
    records: dict[Path, Record] = {}
    for path in folder.rglob(RECORD_FILE):
        try:
            content = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
            records[path] = Record.from_json(content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"{path} is not a record ({type(error).__name__}: {error})", RuntimeWarning, stacklevel=3)
    for path in sorted(folder.rglob(ERROR_FILE)):
        warnings.warn(f"a point failed and is not in the table: {path}", RuntimeWarning, stacklevel=3)
    originals = {path: _original(path, record) for path, record in records.items()}
    read = [path for path in records if originals[path] == path or originals[path] not in records]
    return {path: records[path] for path in sorted(read, key=lambda path: (originals[path], path))}


def _original(path: Path, record: Record) -> Path:
    """POINTS/NAME/record.json for a copy POINTS/wandb/offline-run-.../files/record.json; any other path itself."""
    run = path.parent.parent
    is_copy = path.parent.name == "files" and run.name.startswith("offline-run-")
    return run.parent.parent / str(record.name) / RECORD_FILE if is_copy else path


def is_lossy(record: Record) -> bool:
    """Whether the output may deviate from the target's distribution.

    A greedy-exact rule guarantees nothing above temperature 0.
    """
    guarantee = record.point.get("guarantee")
    return guarantee == "lossy" or (guarantee == "greedy-exact" and bool(record.point.get("temperature")))


@dataclass(frozen=True)
class Group:
    """Points that differ only in ROW_SETTINGS, fastest first."""

    title: str
    records: list[Record]
    labels: list[str]  # one per record, distinct; built from the same settings in all groups


def group_records(records: Iterable[Record]) -> list[Group]:
    """Group records by temperature, then by every other setting outside ROW_SETTINGS."""
    by_settings: dict[str, list[Record]] = {}
    for record in records:
        settings = {key: value for key, value in record.point.items() if key not in ROW_SETTINGS}
        by_settings.setdefault(json.dumps(settings, sort_keys=True), []).append(record)
    points = [record.point for group in by_settings.values() for record in group]
    names = dict.fromkeys(key for point in points for key in point if key not in (*ROW_SETTINGS, "temperature"))
    varying = [name for name in names if len({json.dumps(point.get(name)) for point in points}) > 1]
    if len({(point.get("target"), point.get("target_fingerprint")) for point in points}) == len(
        {point.get("target") for point in points}
    ):  # one fingerprint per name: the name suffices
        varying = [name for name in varying if name != "target_fingerprint"]
    targets = _names_by_fingerprint(record for group in by_settings.values() for record in group)
    groups = []
    for members in by_settings.values():
        members = sorted(members, key=lambda record: -_or(record.metrics.get("speedup/measured"), -math.inf))
        point = members[0].point
        temperature = f"T = {_or(point.get('temperature'), 0):g}"
        title = ", ".join([temperature, *(_setting(name, point, targets) for name in varying)])
        groups.append(Group(title=title, records=members, labels=_labels(members, points)))
    return sorted(groups, key=lambda group: (_or(group.records[0].point.get("temperature"), 0), counted(group.title)))


def _setting(setting: str, point: dict[str, Any], targets: dict[str, str]) -> str:
    """A setting and its value in words; a target is named instead of its fingerprint."""
    if setting == "target_fingerprint" and targets:
        return f"target {targets[str(point.get(setting))]}"
    return f"{setting} {point[setting]}" if setting in point else f"no {setting}"


def _names_by_fingerprint(records: Iterable[Record]) -> dict[str, str]:
    """Names of the targets; empty if some target has no name, or two have the same."""
    found = {
        str(record.point.get("target_fingerprint")): model_names.names(record.models, "target") for record in records
    }
    return found if all(found.values()) and len(set(found.values())) == len(found) else {}


def counted(title: str) -> list[str | int]:
    """Sort key of a text that orders numbers by value: 2 before 16."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", title)]


def _labels(records: Sequence[Record], points: Sequence[dict[str, Any]]) -> list[str]:
    """Drafter names, each with the settings that differ between its points across all groups.

    A record whose label is not unique in its group is labelled by its name.
    """
    labels = []
    for record in records:
        own = record.point
        rivals = [point for point in points if point.get("drafter") == own.get("drafter")]
        shown = [
            f"γ={own.get(key)}" if key == "gamma" else str(own.get(key))
            for key in ("options", "verifier", "gamma_policy", "gamma")
            if len({rival.get(key) for rival in rivals}) > 1
        ]
        labels.append(" ".join([str(own.get("drafter")), *shown]))
    return [
        label if labels.count(label) == 1 else record.name or label
        for label, record in zip(labels, records, strict=True)
    ]


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
