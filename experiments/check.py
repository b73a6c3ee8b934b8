"""Check a drafter or verifier against its contract: `python -m experiments.check drafter=mine`, or verifier=mine."""

import sys
from functools import partial

from omegaconf import DictConfig

from experiments.config.builders import build, build_target, build_with_target, register_resolvers
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from framework.conformance import check_drafter, check_verifier
from framework.core.validation import check_whole

register_resolvers()


@command("check")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        if not cfg.get("drafter") and not cfg.get("verifier"):
            raise ValueError("there is nothing to check; choose drafter=NAME or verifier=NAME, as in conf/")
        check_whole("max_gamma", cfg.max_gamma, least=2, most=100)  # drafts need a node before the last one
        check_whole("samples", cfg.samples, least=1000, most=10**8)  # fewer would have no statistical power
        reports = []
        if cfg.get("drafter"):
            drafter = partial(build_with_target, build(cfg.drafter), cfg.drafter)
            with status("loading the target"):
                target = build_target(cfg)
            with status("checking the drafter"):
                reports.append(check_drafter(drafter, target=target, gamma=cfg.max_gamma, samples=cfg.samples))
        if cfg.get("verifier"):
            with status("checking the verifier"):
                reports.append(check_verifier(lambda: build(cfg.verifier)))
        for report in reports:
            print(report)
        if any(report.breaches for report in reports):
            sys.exit(1)


if __name__ == "__main__":
    main()
