"""The main job: every drafter side by side. `python -m experiments.compare`, or records=FOLDER to look again."""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, open_dict

from experiments.assemble import (
    build_drafter,
    build_protocol,
    build_sampling,
    build_subject,
    build_target,
    build_tracker,
    prepare_machine,
    register_resolvers,
)
from experiments.entry_point import one_line_errors
from experiments.measurement import measure
from experiments.publish import mirror, print_report
from experiments.records import Record, load_records

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="compare")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        folder = Path(HydraConfig.get().runtime.output_dir)
        records = measure_all(cfg, folder) if cfg.records is None else load_records(Path(cfg.records))
        print_report(records, folder, source=cfg.records and Path(cfg.records))


def measure_all(cfg: DictConfig, folder: Path) -> list[Record]:
    """Every drafter at every temperature; drafters and target are built once."""
    prepare_machine(cfg)
    tracker = build_tracker(cfg)
    samplings = [build_sampling(at_temperature(cfg, temperature)) for temperature in cfg.temperatures]
    target = build_target(cfg)
    protocol = build_protocol(cfg, target)
    drafters = {name: build_drafter(node, target) for name, node in cfg.drafters.items()}
    records = []
    for temperature, sampling in zip(cfg.temperatures, samplings, strict=True):
        point_cfg = at_temperature(cfg, temperature)
        subjects = [
            build_subject(point_cfg, str(name), drafter, target, sampling, study="compare", folder=folder)
            for name, drafter in drafters.items()
        ]
        measured = measure(subjects, target, sampling, protocol)
        mirror(measured, [subject.point for subject in subjects], tracker)
        records += measured
    return records


def at_temperature(cfg: DictConfig, temperature: float) -> DictConfig:
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.sampling.temperature = temperature
    return cfg


if __name__ == "__main__":
    main()
