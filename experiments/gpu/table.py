"""The acceptance's results as a Markdown table, for docs/benchmarks.md."""

from collections.abc import Mapping
from typing import Any

from experiments.gpu.findings import NOT_MEASURED, StepResult

LONGEST_CELL = 150


def markdown(record: Mapping[str, Any]) -> str:
    """A line about the machine, and a row per check and per part that was left out."""
    results: dict[str, StepResult] = record["steps"]
    rows = [["step", "check", "measured", "bound", "verdict"], ["---"] * 5]
    for step, result in results.items():
        for check in result.checks:
            measured = "" if check.verdict == NOT_MEASURED else check.measured
            verdict = f"{NOT_MEASURED}: {check.measured}" if check.verdict == NOT_MEASURED else check.verdict
            rows.append([step, check.name, measured, check.bound, verdict])
        rows += [[step, part, "", "", "left out"] for part in result.left_out]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join([_machine(record), "", *lines, ""])


def _machine(record: Mapping[str, Any]) -> str:
    facts = record["steps"].get("facts", StepResult()).facts
    known = facts.get("versions", {}) | facts.get("machine", {})
    about = [f"{name} {known[name]}" for name in ("torch", "transformers", "cuda", "driver") if known.get(name)]
    seconds = sum(result.seconds or 0 for result in record["steps"].values())
    return f"{', '.join([record['device'] or 'unknown device', *about])}; {seconds:.0f} s."


def _cell(text: str) -> str:
    text = text.replace("|", "\\|")
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"
