"""Compare all drafters: `python -m experiments.compare`, or with records=SOURCE report earlier records again."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("compare")
    raise SystemExit

import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from experiments.config.builders import build_candidate, build_sampling, build_tracker
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.config.fitting_drafters import prepare_comparison
from experiments.config.option_checks import check_kind
from experiments.measurement.bench import measure
from experiments.measurement.plan import Candidate
from experiments.measurement.resource_cache import ResourceCache
from experiments.reporting.publish import mirror, mirror_missing, print_report
from experiments.reporting.tables.accepted_lengths import NOTE, accepted_lengths
from experiments.reporting.tables.text_table import shown
from experiments.results.record import Record
from experiments.results.records import load_records

# Options that have an effect beside records=.
READ_WITH_RECORDS = ("records=", "compare_to=", "publish=", "accepted_lengths=", "tracker")
PROJECT = "wandb:"  # prefix of records= for a W&B project


@command("compare")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        folder = Path(HydraConfig.get().runtime.output_dir)
        check_publish(cfg)
        check_kind("accepted_lengths", cfg.accepted_lengths, [bool])
        earlier = None if cfg.compare_to is None else read_records("compare_to", str(cfg.compare_to))
        if cfg.records is not None:
            check_read(HydraConfig.get().overrides.task)
            records = read_records("records", str(cfg.records))
            tracker = build_tracker(cfg, ResourceCache()) if cfg.publish else None
            if tracker:
                mirror_missing(Path(cfg.records), tracker)
            print_report(records, folder, source=str(cfg.records), compare_to=earlier, tracker=tracker)
            print_accepted_lengths(cfg, records)
            return
        candidates: list[Candidate] = []
        records = []
        resources, is_whole = ResourceCache(), False
        try:
            for candidate, record in measure_all(cfg, folder, resources):
                candidates.append(candidate)
                records += [record] if record else []
            is_whole = True
        finally:
            # Report the finished records of an interrupted run too.
            tracker = build_tracker(cfg, resources) if is_whole else None
            print_report(records, folder, compare_to=earlier, tracker=tracker)
            print_accepted_lengths(cfg, records)
        for candidate in candidates:
            candidate.raise_error()


def measure_all(cfg: DictConfig, folder: Path, resources: ResourceCache) -> Iterator[tuple[Candidate, Record | None]]:
    """Measure every drafter at every temperature; yield candidates with their records, None if failed.

    Drafters and target are built once.
    """
    check_temperatures(cfg)
    tracker = build_tracker(cfg, resources)
    samplings = [build_sampling(at_temperature(cfg, temperature)) for temperature in cfg.temperatures]
    target, plan, drafters = prepare_comparison(cfg, resources)
    for sampling in samplings:
        point_cfg = at_temperature(cfg, sampling.temperature)
        candidates = [
            build_candidate(
                point_cfg, name, drafter, target, sampling, study="compare", folder=folder, compiled=plan.compiled
            )
            for name, drafter in drafters.items()
        ]
        mirror(measure(candidates, target, sampling, plan, resources), tracker, folder=folder)
        if not sys.stdout.isatty():  # no progress bar
            print(f"T={sampling.temperature:g} is measured", flush=True)
        yield from ((candidate, candidate.record) for candidate in candidates)


def read_records(key: str, source: str) -> list[Record]:
    """Read records from a run's folder, from a folder of offline W&B runs, or from a W&B project.

    Args:
        key: yaml key of the source, for errors.
        source: a folder, wandb:entity/project or wandb:entity/project/study.

    Raises:
        ValueError, OSError: there are no records, or they cannot be read.
    """
    if source.startswith(PROJECT):
        from experiments.tracking.wandb_reading import read_project  # a slow import

        with status(f"reading {source}"):
            records = read_project(key, source.removeprefix(PROJECT))
    else:
        with warnings.catch_warnings(record=True) as unread:
            warnings.simplefilter("always", RuntimeWarning)
            records = load_records(Path(source)) if Path(source).is_dir() else []
        if records or not unread:
            for each in unread:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        else:
            raise ValueError(
                f"{key} is {source!r}: {unread[0].message}; allowed: a folder with a record that can be read"
            )
    if not records:
        raise FileNotFoundError(
            f"{key} is {source!r}: no record.json there; give a folder that compare printed, a folder of offline W&B "
            f"runs, or {PROJECT}entity/project"
        )
    return records


def print_accepted_lengths(cfg: DictConfig, records: list[Record]) -> None:
    """Print the table of accepted lengths if it is asked for."""
    if cfg.accepted_lengths and records:
        table = shown(accepted_lengths(records), title="Mean accepted length", caption=NOTE)
        Console(width=None if sys.stdout.isatty() else 120).print(table)


def check_publish(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: publish is not a bool, or is true while `records` is no folder.
    """
    check_kind("publish", cfg.publish, [bool])
    if cfg.publish and (cfg.records is None or str(cfg.records).startswith(PROJECT)):
        raise ValueError(f"publish is true, and records is {cfg.records!r}; allowed: a folder of records")


def check_read(overrides: Iterable[str]) -> None:
    """
    Args:
        overrides: those of the command line.

    Raises:
        ValueError: an override would change what is measured, and earlier records are shown.
    """
    for override in overrides:
        if not override.lstrip("+~").startswith(READ_WITH_RECORDS):
            raise ValueError(f"records is set, so nothing is measured with {override}; leave out one of them")


def check_temperatures(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: `temperatures` is not a non-empty list of numbers >= 0.
    """
    temperatures = cfg.temperatures if OmegaConf.is_list(cfg.temperatures) else []
    if not temperatures or not all(type(value) in (int, float) and 0 <= value < math.inf for value in temperatures):
        raise ValueError(f"temperatures is {cfg.temperatures!r}; allowed: a list of numbers >= 0, such as [0,1]")
    if len(set(temperatures)) < len(temperatures):
        raise ValueError(f"temperatures is {cfg.temperatures!r}; allowed: each temperature once")


def at_temperature(cfg: DictConfig, temperature: float) -> DictConfig:
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.sampling.temperature = temperature
    return cfg
