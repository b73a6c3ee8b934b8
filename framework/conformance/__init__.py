"""Executable contracts of drafters and verifiers: run them on your own classes."""

from framework.conformance.drafter_checks import check_drafter
from framework.conformance.report import Breach, Finding, Report
from framework.conformance.verifier_checks import check_verifier

__all__ = ["Breach", "Finding", "Report", "check_drafter", "check_verifier"]
