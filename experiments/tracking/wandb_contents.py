"""Contents of a W&B run of a point or a training: config, summary numbers, series and charts."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import wandb

from experiments.reporting.tables.token_table import token_table
from experiments.results.model_names import in_words, names
from experiments.results.record import Record
from experiments.tracking.tracker import Overview, Point

# x-axis of every series of a run, by the prefix of its name.
AXES = {"prompt": "prompt/number", "position": "position/number", "training": "training/step"}
ROLES = ("target", "drafter")  # of models
COMPARISON = "compare"  # study whose every run of the command is a group of its own
LONGEST_NAME = 128  # characters of a name or a group, by W&B's limit
ORIGIN = ("command", "commit", "versions", "machine", "seeds", "started", "ranks")


def tags_of(settings: dict[str, Any]) -> list[str]:
    """Tags for drafter, verifier and temperature, where known."""
    tags = [str(settings[key]) for key in ("drafter", "verifier") if settings.get(key)]
    return tags + ([f"T={settings['temperature']:g}"] if settings.get("temperature") is not None else [])


def name_of(point: Point) -> str:
    """Name of a W&B run: the point and its models."""
    models = ", ".join(filter(None, (names(point.models, role) for role in ROLES)))
    return f"{point.name} ({models})"[:LONGEST_NAME] if models else point.name


def group_of(part: Point | Overview) -> str:
    """Group of a W&B run: the study and the target; for a comparison also its folder, named after its start."""
    words = [
        part.study,
        names(part.models, "target"),
        part.folder.resolve().name if part.study == COMPARISON else "",
    ]
    return " ".join(filter(None, words))[:LONGEST_NAME]


def config_of(point: Point) -> dict[str, Any]:
    """Config of a W&B run: settings, study and models of the point, flat, and the whole configuration under `config`.

    The drafter is always `config.drafter`, even if several were measured together, so that all runs share one column.
    """
    config = {key: value for key, value in point.config.items() if key != "drafters"}
    models = {f"{role}_model": words for role in ROLES if (words := in_words(point.models, role))}
    own = {"study": point.study, "config": config | ({"drafter": node} if (node := drafter_node(point)) else {})}
    return {**point.settings, **models, **own}


def drafter_node(point: Point) -> dict[str, Any]:
    """The config node of the point's drafter."""
    several = point.config.get("drafters", {})
    return several.get(point.settings.get("drafter")) or point.config.get("drafter", {})


def define_series(run: wandb.Run) -> None:
    """Assign an x-axis to every series and keep series out of the run table, which would show only the last value."""
    for prefix, axis in AXES.items():
        run.define_metric(axis, hidden=True, summary="none")
        run.define_metric(f"{prefix}/*", step_metric=axis, summary="none")


def prompt_step(number: int, row: dict[str, Any]) -> dict[str, float]:
    """Step of the prompt series: the numeric values of a row. Prompts are numbered from 1."""
    numbers = {f"prompt/{key}": value for key, value in row.items() if isinstance(value, int | float)}
    return {AXES["prompt"]: number} | numbers


def position_steps(record: Record) -> Iterator[dict[str, float]]:
    """Alpha at draft positions 1, 2, ..., one step each, so that W&B draws one line per run."""
    prefix = "alpha/position/"
    for key, alpha in record.metrics.items():
        if key.startswith(prefix) and alpha is not None:
            yield {AXES["position"]: int(key.removeprefix(prefix)), "position/alpha": alpha}


def numbers_of(record: Record) -> dict[str, Any]:
    """Numbers for the run table. Missing and non-finite values are left out, since W&B would plot them."""
    stages = record.stages_ms_per_round
    numbers = {
        **record.metrics,
        **{f"stage_ms_per_round/{stage}": value for stage, value in stages.items()},
        "walltime_seconds": record.seconds,
    }
    return {key: value for key, value in numbers.items() if value is not None and math.isfinite(value)}


def charts_of(record: Record, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Tables and charts of a run, by name. W&B overlays charts of the same name from several runs.

    Args:
        record: the record of the point.
        rows: one row per prompt.
    """
    charts: dict[str, Any] = {}
    if rows:
        charts["prompts"] = _prompt_table(rows)
        charts["tokens"] = wandb.Html(token_table(rows), inject=False)
    if accepted := record.rounds_histogram.get("accepted"):
        edges = np.arange(len(accepted) + 1)
        charts["accepted_per_round"] = wandb.Histogram(np_histogram=(np.asarray(accepted), edges))
    if stages := record.stages_ms_per_round:
        table = wandb.Table(columns=["stage", "ms"], data=[list(stage) for stage in stages.items()])
        charts["round_time"] = wandb.plot.bar(table, "stage", "ms", title="Milliseconds of a round, by stage")
    metrics = record.metrics
    zero_overhead, measured = (metrics.get(f"speedup/{which}") for which in ("zero_overhead", "measured"))
    if zero_overhead is not None and measured is not None:
        table = wandb.Table(columns=["zero_overhead", "measured"], data=[[zero_overhead, measured]])
        title = "Speedup: measured against zero-overhead speedup"
        charts["predicted_against_measured"] = wandb.plot.scatter(table, "zero_overhead", "measured", title=title)
    return charts


def overview_contents(overview: Overview) -> dict[str, Any]:
    """Table, page and pictures of an overview, by name."""
    columns: list[str | int] = list(overview.rows[0])
    data = [[_finite(row[str(column)]) for column in columns] for row in overview.rows]
    return {
        "overview/table": wandb.Table(columns=columns, data=data, allow_mixed_types=True),
        "overview/page": wandb.Html(overview.page, inject=False),
        **{f"overview/{picture.stem}": wandb.Image(str(picture)) for picture in overview.pictures},
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _prompt_table(rows: Sequence[dict[str, Any]]) -> wandb.Table:
    """Table of the prompts, without columns that hold lists or dicts."""
    columns: list[str | int] = list(
        dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list | dict))
    )
    data = [[row.get(str(column)) for column in columns] for row in rows]
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def training_steps(facts: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Steps of the training series: the loss every few steps, and measurements on held-out text."""
    for entry in facts.get("history", []):
        measures = {f"training/{key}": value for key, value in entry.items() if key != "step"}
        yield {AXES["training"]: entry["step"]} | measures


def training_numbers(facts: dict[str, Any]) -> dict[str, Any]:
    """Results of a training, for the run table."""
    held_out = {f"held_out/{key}": value for key, value in facts["held_out"].items() if key != "fingerprint"}
    return held_out | {key: facts[key] for key in ("steps", "tokens", "seconds")}
