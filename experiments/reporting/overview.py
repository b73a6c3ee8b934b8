"""The overview of a comparison or a sweep: one table of all points, with page and pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.results.record import Record
from experiments.tracking.tracker import Overview

# Metrics of the first columns; the others follow in the order of the records.
HEADLINE = (
    "speedup/measured",
    "speedup/measured_low",
    "speedup/measured_high",
    "speedup/zero_overhead",
    "efficiency",
    "alpha/overlap",
    "alpha/empirical",
    "tau",
    "c",
    "ms_per_token",
)


def overview_of(records: Sequence[Record], folder: Path, *, page: Path, pictures: Sequence[Path]) -> Overview:
    """Overview of records that were reported together.

    Args:
        folder: folder of the records.
        page: their page.
        pictures: their plots.
    """
    studies = {record.study for record in records}
    target = records[0].models.get("target", [])
    settings = _settings(records)
    shared = {key: records[0].point[key] for key in settings if _is_shared(key, records)}
    return Overview(
        folder=folder,
        study=studies.pop() if len(studies) == 1 else "compare",
        points=sorted(f"{record.name} {record.started}" for record in records),
        settings=shared,
        rows=_rows(records, [key for key in settings if key not in shared]),
        page=page,
        pictures=list(pictures),
        models={"target": target} if all(record.models.get("target") == target for record in records) else {},
    )


def _settings(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(key for record in records for key in record.point))


def _is_shared(setting: str, records: Sequence[Record]) -> bool:
    first = records[0].point
    return setting in first and all(record.point.get(setting) == first[setting] for record in records)


def _rows(records: Sequence[Record], settings: Sequence[str]) -> list[dict[str, Any]]:
    """A row per record: its name, the settings that differ, and every metric that any record has."""
    known = dict.fromkeys(key for record in records for key, value in record.metrics.items() if value is not None)
    metrics = [*(key for key in HEADLINE if key in known), *(key for key in known if key not in HEADLINE)]
    return [
        {
            "name": record.name,
            **{key: record.point.get(key) for key in settings},
            **{key: record.metrics.get(key) for key in metrics},
        }
        for record in records
    ]
