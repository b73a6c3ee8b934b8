"""Check a part against its contract, in words: `python -m experiments.check drafter=mine`, or verifier=mine."""

import sys

import hydra
from omegaconf import DictConfig

from experiments.assemble import build, build_target, register_resolvers
from experiments.entry_point import one_line_errors, status
from framework.conformance import check_drafter, check_verifier

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="check")
def main(cfg: DictConfig) -> None:
    with one_line_errors():
        if not cfg.get("drafter") and not cfg.get("verifier"):
            raise ValueError("there is nothing to check; choose drafter=NAME or verifier=NAME, as in conf/")
        if not isinstance(cfg.max_gamma, int) or cfg.max_gamma < 2:
            raise ValueError(f"max_gamma is {cfg.max_gamma!r}; allowed: a whole number >= 2 (drafts need a middle)")
        if not isinstance(cfg.samples, int) or cfg.samples < 1000:
            raise ValueError(f"samples is {cfg.samples!r}; allowed: a whole number >= 1000, or nothing would be seen")
        reports = []
        if cfg.get("drafter"):
            factory = build(cfg.drafter)
            with status("loading the target"):
                target = build_target(cfg)
            with status("checking the drafter"):
                reports.append(check_drafter(factory, target=target, gamma=cfg.max_gamma, samples=cfg.samples))
        if cfg.get("verifier"):
            with status("checking the verifier"):
                reports.append(check_verifier(lambda: build(cfg.verifier)))
        for report in reports:
            print(report)
        if any(report.breaches for report in reports):
            sys.exit(1)


if __name__ == "__main__":
    main()
