"""Check a part against its contract, in words: `python -m experiments.check drafter=mine`, or verifier=mine."""

import sys

import hydra
from omegaconf import DictConfig

from experiments.assemble import build, build_target, register_resolvers
from experiments.entry_point import one_line_errors, status
from framework.conformance import check_drafter, check_verifier
from framework.whole_numbers import check_whole

register_resolvers()


@hydra.main(version_base="1.3", config_path="../conf", config_name="check")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        if not cfg.get("drafter") and not cfg.get("verifier"):
            raise ValueError("there is nothing to check; choose drafter=NAME or verifier=NAME, as in conf/")
        check_whole("max_gamma", cfg.max_gamma, least=2, most=100)  # drafts need a middle
        check_whole("samples", cfg.samples, least=1000, most=10**8)  # with fewer nothing would be seen
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
