"""Executable contracts of drafters, verifiers, gamma policies and prompt sources: run them on your own classes."""

from framework.conformance.drafter_checks import check_drafter
from framework.conformance.gamma_policy_checks import check_gamma_policy
from framework.conformance.prompt_source_checks import check_prompt_source
from framework.conformance.report import Breach, Finding, Report
from framework.conformance.verifier_checks import check_verifier

__all__ = [
    "Breach",
    "Finding",
    "Report",
    "check_drafter",
    "check_gamma_policy",
    "check_prompt_source",
    "check_verifier",
]
