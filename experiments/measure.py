"""Measure one point, or many with -m: `python -m experiments.measure drafter=ngram gamma.gamma=4`."""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.assemble import build_sampling, build_subject, build_tracker, prepare, register_resolvers
from experiments.entry_point import one_line_errors
from experiments.measurement import measure
from experiments.publish import mirror, print_report

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="measure")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        choices, folder = HydraConfig.get().runtime.choices, Path(HydraConfig.get().runtime.output_dir)
        sampling, tracker = build_sampling(cfg), build_tracker(cfg)
        name, study = choices["drafter"], choices.get("study") or "measure"
        target, plan, drafters = prepare(cfg, {name: cfg.drafter})
        subject = build_subject(
            cfg, name, drafters[name], target, sampling, study=study, folder=folder, compiled=plan.compiled
        )
        records = measure([subject], target, sampling, plan)
        mirror(records, tracker, folder=folder)
        print_report(records, folder)
        subject.raise_error()


if __name__ == "__main__":
    main()
