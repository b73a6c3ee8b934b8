"""The main job: every drafter side by side. `python -m experiments.compare`, or records=SOURCE to look again."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from experiments.assemble import build_sampling, build_subject, build_tracker, prepare, register_resolvers
from experiments.entry_point import one_line_errors, status
from experiments.kept import Kept
from experiments.knobs import check_kind
from experiments.measurement import Subject, measure
from experiments.publish import mirror, mirror_untold, print_report
from experiments.records import Record, load_records

PROJECT = "wandb:"  # what records= begins with where it names a W&B project

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="compare")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        folder = Path(HydraConfig.get().runtime.output_dir)
        check_publish(cfg)
        earlier = None if cfg.against is None else read_records("against", str(cfg.against))
        if cfg.records is not None:
            records = read_records("records", str(cfg.records))
            if cfg.publish:
                mirror_untold(Path(cfg.records), build_tracker(cfg, Kept()))
            print_report(records, folder, source=str(cfg.records), against=earlier)
            return
        subjects: list[Subject] = []
        records = []
        try:
            for subject, record in measure_all(cfg, folder):
                subjects.append(subject)
                records += [record] if record else []
        finally:
            # Also when something stopped the run: what is finished is shown.
            print_report(records, folder, against=earlier)
        for subject in subjects:
            subject.raise_error()


def measure_all(cfg: DictConfig, folder: Path) -> Iterator[tuple[Subject, Record | None]]:
    """Every drafter at every temperature, with its record unless it failed; drafters and target are built once."""
    check_temperatures(cfg)
    kept = Kept()
    tracker = build_tracker(cfg, kept)
    samplings = [build_sampling(at_temperature(cfg, temperature)) for temperature in cfg.temperatures]
    target, plan, drafters = prepare(cfg, {str(name): node for name, node in cfg.drafters.items()}, kept)
    for sampling in samplings:
        point_cfg = at_temperature(cfg, sampling.temperature)
        subjects = [
            build_subject(
                point_cfg, name, drafter, target, sampling, study="compare", folder=folder, compiled=plan.compiled
            )
            for name, drafter in drafters.items()
        ]
        mirror(measure(subjects, target, sampling, plan, kept), tracker, folder=folder)
        if not sys.stdout.isatty():  # where no bar is seen
            print(f"T={sampling.temperature:g} is measured", flush=True)
        yield from ((subject, subject.record) for subject in subjects)


def read_records(key: str, source: str) -> list[Record]:
    """Read records from a folder, be they a run's own or those of offline W&B runs, or from a W&B project.

    Args:
        key: of the yaml, which names the source.
        source: a folder, wandb:entity/project or wandb:entity/project/study.

    Raises:
        ValueError, OSError: there are none, or they cannot be read.
    """
    if source.startswith(PROJECT):
        from experiments.wandb_reading import read_project  # takes a second, which nobody else should wait

        with status(f"reading {source}"):
            records = read_project(key, source.removeprefix(PROJECT))
    else:
        records = load_records(Path(source)) if Path(source).is_dir() else []
    if not records:
        raise FileNotFoundError(
            f"{key} is {source!r}: no record.json there; give a folder that compare printed, a folder of offline W&B "
            f"runs, or {PROJECT}entity/project"
        )
    return records


def check_publish(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: it is neither true nor false, or true where there is no folder of records.
    """
    check_kind("publish", cfg.publish, [bool])
    if cfg.publish and (cfg.records is None or str(cfg.records).startswith(PROJECT)):
        raise ValueError(f"publish is true, and records is {cfg.records!r}; allowed: a folder of records")


def check_temperatures(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: they are not a list of temperatures.
    """
    temperatures = cfg.temperatures if OmegaConf.is_list(cfg.temperatures) else []
    if not temperatures or not all(type(value) in (int, float) and 0 <= value < math.inf for value in temperatures):
        raise ValueError(f"temperatures is {cfg.temperatures!r}; allowed: a list of numbers >= 0, such as [0,1]")


def at_temperature(cfg: DictConfig, temperature: float) -> DictConfig:
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.sampling.temperature = temperature
    return cfg


if __name__ == "__main__":
    main()
