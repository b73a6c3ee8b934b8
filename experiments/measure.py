"""Measure one point, or many with -m: `python -m experiments.measure drafter=ngram gamma.gamma=4`."""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.assemble import (
    build_plan,
    build_sampling,
    build_subject,
    build_target,
    build_tracker,
    check_before_loading,
    register_resolvers,
)
from experiments.entry_point import one_line_errors, status
from experiments.measurement import measure
from experiments.publish import mirror, print_report

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="measure")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        sampling, tracker = build_sampling(cfg), build_tracker(cfg)
        name = choices["drafter"]
        factories = check_before_loading(cfg, {name: cfg.drafter})
        with status("loading the target"):
            target = build_target(cfg)
            plan = build_plan(cfg, target)
        with status(f"building {name}"):
            drafter = factories[name](target=target)
        study = choices.get("study") or "measure"
        subject = build_subject(cfg, name, drafter, target, sampling, study=study, folder=folder)
        records = measure([subject], target, sampling, plan)
        mirror(records, tracker, folder=folder)
        print_report(records, folder)
        subject.raise_error()


if __name__ == "__main__":
    main()
