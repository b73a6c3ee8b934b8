"""Check parts against their contracts: `python -m experiments.check drafter=mine`, or verifier, gamma or prompts."""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("check")
    raise SystemExit

import sys
from collections.abc import Iterator
from functools import partial

from omegaconf import DictConfig

from experiments.config.builders import build, build_target, build_with_target
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.results.passed_checks import note_passed
from framework.conformance import Report, check_drafter, check_gamma_policy, check_prompt_source, check_verifier
from framework.core.validation import check_whole

PARTS = ("drafter", "verifier", "gamma", "prompts")


@command("check")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was written"):
        if not any(cfg.get(part) for part in PARTS):
            choices = ", ".join(f"{part}=NAME" for part in PARTS)
            raise ValueError(f"there is nothing to check; choose one or more of {choices}, as in conf/")
        check_whole("max_gamma", cfg.max_gamma, least=2, most=100)  # drafts need a node before the last one
        check_whole("samples", cfg.samples, least=1000, most=10**8)  # fewer would have no statistical power
        reports = list(_reports(cfg))
        for report in reports:
            print(report)
        if any(report.breaches for report in reports):
            sys.exit(1)


def _reports(cfg: DictConfig) -> Iterator[Report]:
    """Build and check the chosen parts; the one that needs a target comes last."""
    if cfg.get("verifier"):
        with status("checking the verifier"):
            yield check_verifier(lambda: build(cfg.verifier))
    if cfg.get("gamma"):
        with status("checking the gamma policy"):
            yield check_gamma_policy(lambda: build(cfg.gamma))
    if cfg.get("prompts"):
        with status("checking the prompt source"):
            yield check_prompt_source(lambda: build(cfg.prompts.source))
    if cfg.get("drafter"):
        drafter = partial(build_with_target, build(cfg.drafter), cfg.drafter)
        with status("loading the target"):
            target = build_target(cfg)
        with status("checking the drafter"):
            report = check_drafter(drafter, target=target, gamma=cfg.max_gamma, samples=cfg.samples)
        if not report.breaches:
            note_passed(type(drafter(target=target)))  # the tick in tables of later measurements
        yield report
