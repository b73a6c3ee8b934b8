"""The deterministic part of records: everything except times."""

import json
from pathlib import Path
from typing import Any

# Prefixes of counted metrics; all others are times or computed from times.
COUNTED = ("alpha", "tau", "gamma", "nodes", "operations", "tokens_equal", "quality", "occupancy", "divergence",
           "distinct")  # fmt: skip


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    """The part of a record that every repetition must reproduce."""
    kept = ("name", "study", "point", "config", "chat", "seeds", "counts", "differences", "rounds_histogram")
    metrics = {key: value for key, value in record["metrics"].items() if key.startswith(COUNTED)}
    assert len(metrics) > 5
    rows = [{key: value for key, value in row.items() if "seconds" not in key} for row in record["prompts"]]
    return {key: record[key] for key in kept} | {"metrics": metrics, "prompts": rows, "keys": sorted(record)}


def records_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Deterministic parts of all records below a folder, by relative path."""
    return {
        str(path.relative_to(folder)): without_times(json.loads(path.read_text()))
        for path in sorted(folder.rglob("record.json"))
    }
