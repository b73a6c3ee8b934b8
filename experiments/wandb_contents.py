"""What a W&B run shows of a point or a training: config to filter by, numbers for the run table, series, charts."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import wandb

from experiments.records import Record
from experiments.token_table import token_table
from framework.tracker import Point

# Series of a run, by the prefix of their names: the axis each is drawn over.
AXES = {"prompt": "prompt/number", "position": "position/number", "training": "training/step"}
ORIGIN = ("command", "commit", "versions", "machine", "seeds", "started", "ranks")


def tags_of(settings: dict[str, Any]) -> list[str]:
    """Drafter, verifier and temperature, those that are known."""
    tags = [str(settings[key]) for key in ("drafter", "verifier") if settings.get(key)]
    return tags + ([f"T={settings['temperature']:g}"] if settings.get("temperature") is not None else [])


def config_of(point: Point) -> dict[str, Any]:
    """The point's settings, flat, and the whole configuration under `config`.

    There the drafter is `config.drafter`, also where several were measured together: one column for all runs.
    """
    config = {key: value for key, value in point.config.items() if key != "drafters"}
    return {**point.settings, "config": config | ({"drafter": node} if (node := drafter_node(point)) else {})}


def drafter_node(point: Point) -> dict[str, Any]:
    """The part of the configuration that describes the point's drafter."""
    several = point.config.get("drafters", {})
    return several.get(point.settings.get("drafter")) or point.config.get("drafter", {})


def define_series(run: wandb.Run) -> None:
    """Give every series its axis, and keep it out of the run table, where only its last value would be seen."""
    for prefix, axis in AXES.items():
        run.define_metric(axis, hidden=True, summary="none")
        run.define_metric(f"{prefix}/*", step_metric=axis, summary="none")


def prompt_step(number: int, row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a prompt, the first of which is number 1."""
    numbers = {f"prompt/{key}": value for key, value in row.items() if isinstance(value, int | float)}
    return {AXES["prompt"]: number} | numbers


def position_steps(record: Record) -> Iterator[dict[str, float]]:
    """Alpha at draft position 1, 2, ..., a step each, so that W&B draws a line for every run."""
    prefix = "alpha/position/"
    for key, alpha in record.get("metrics", {}).items():
        if key.startswith(prefix) and alpha is not None:
            yield {AXES["position"]: int(key.removeprefix(prefix)), "position/alpha": alpha}


def numbers_of(record: Record) -> dict[str, Any]:
    """Everything for the run table; what is no number is left out, since W&B would draw it."""
    stages = record.get("stages_ms_per_round", {})
    numbers = {
        **record.get("metrics", {}),
        **{f"stage_ms_per_round/{stage}": value for stage, value in stages.items()},
        "walltime_seconds": record.get("seconds"),
    }
    return {key: value for key, value in numbers.items() if value is not None and math.isfinite(value)}


def charts_of(record: Record, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tables and charts; W&B draws those of one name from several runs together.

    Args:
        rows: of the prompts.
    """
    charts: dict[str, Any] = {}
    if rows:
        charts["prompts"] = _prompt_table(rows)
        charts["tokens"] = wandb.Html(token_table(rows), inject=False)
    if accepted := record.get("rounds_histogram", {}).get("accepted"):
        edges = np.arange(len(accepted) + 1)
        charts["accepted_per_round"] = wandb.Histogram(np_histogram=(np.asarray(accepted), edges))
    if stages := record.get("stages_ms_per_round"):
        table = wandb.Table(columns=["stage", "ms"], data=[list(stage) for stage in stages.items()])
        charts["round_time"] = wandb.plot.bar(table, "stage", "ms", title="Milliseconds of a round, by stage")
    metrics = record.get("metrics", {})
    attainable, measured = (metrics.get(f"speedup/{which}") for which in ("attainable", "measured"))
    if attainable is not None and measured is not None:
        table = wandb.Table(columns=["attainable", "measured"], data=[[attainable, measured]])
        title = "Speedup: measured against attainable"
        charts["predicted_against_measured"] = wandb.plot.scatter(table, "attainable", "measured", title=title)
    return charts


def _prompt_table(rows: Sequence[dict[str, Any]]) -> wandb.Table:
    """All that is a number or a text."""
    columns: list[str | int] = list(
        dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list | dict))
    )
    data = [[row.get(str(column)) for column in columns] for row in rows]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def training_steps(facts: dict[str, Any]) -> Iterator[dict[str, float]]:
    """What was measured on held-out text while a drafter was trained."""
    for entry in facts.get("history", []):
        measures = {f"training/{key}": value for key, value in entry.items() if key != "step"}
        yield {AXES["training"]: entry["step"]} | measures


def training_numbers(facts: dict[str, Any]) -> dict[str, Any]:
    """What came out of a training, for the run table."""
    held_out = {f"held_out/{key}": value for key, value in facts["held_out"].items() if key != "fingerprint"}
    return held_out | {key: facts[key] for key in ("steps", "tokens", "seconds")}
