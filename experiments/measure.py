"""Measure one point, or many with -m: `python -m experiments.measure drafter=ngram gamma.gamma=4`."""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

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

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="measure")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        prepare_machine(cfg)
        sampling, tracker = build_sampling(cfg), build_tracker(cfg)
        target = build_target(cfg)
        protocol = build_protocol(cfg, target)
        drafter = build_drafter(cfg.drafter, target)
        subject = build_subject(
            cfg, choices["drafter"], drafter, target, sampling, study=choices.get("study") or "measure", folder=folder
        )
        records = measure([subject], target, sampling, protocol)
        mirror(records, [subject.point], tracker)
        print_report(records, folder)


if __name__ == "__main__":
    main()
