"""Renamed keys and names of earlier record versions, with their current names."""

from typing import Any

KEYS = {
    "knobs": "options",
    "tokens_equal_yardstick": "tokens_equal_baseline",
    "yardstick": "baseline",
    "yardstick_ms_per_token": "baseline_ms_per_token",
    "yardstick_end_to_end_ms_per_token": "baseline_end_to_end_ms_per_token",
    "yardstick_seconds": "baseline_seconds",
    "yardstick_decode_seconds": "baseline_decode_seconds",
    "yardstick_new_tokens": "baseline_new_tokens",
    "speedup/attainable": "speedup/zero_overhead",
    "speedup/theorem": "speedup/predicted",
    "judge": "verify_and_commit",
}
# Settings whose value is the name of a yaml: setting -> old name -> current name.
CHOICES = {
    "drafter": {"parallel": "dart"},
    "gamma_policy": {"additive": "heuristic", "best_expected_speed": "expected_speedup"},
}
PARTS = ("point", "metrics", "prompts", "differences", "stages")  # a record's config keeps its old keys


def with_current_keys(record: Any) -> Any:
    """Rename the keys of a record of any version to the current ones."""
    if not isinstance(record, dict):
        return record
    found = {key: _renamed(value) if key in PARTS else value for key, value in record.items()}
    if isinstance(point := found.get("point"), dict):
        for setting, names in CHOICES.items():
            if isinstance(name := point.get(setting), str):
                point[setting] = names.get(name, name)
    return found


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {KEYS.get(key, key): item for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    return value
