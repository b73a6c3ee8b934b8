"""What a conformance check found, in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Breach(AssertionError):
    """A part breaks its contract; the message says what was returned and what to do."""


@dataclass(frozen=True)
class Finding:
    """One rule of a contract, and how it was broken, if it was.

    Attributes:
        rule: what must hold, in words.
        breach: what was returned and what to do about it; None if the rule holds.
        remark: what was measured on the way; may be empty.
    """

    rule: str
    breach: str | None
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """Every rule that applies to a part, in the order checked.

    Attributes:
        subject: the part.
        findings: one per rule that was checked.
        unchecked: rules that were not checked because an essential one is broken.
    """

    subject: str
    findings: Sequence[Finding]
    unchecked: Sequence[str] = ()

    @property
    def breaches(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.breach is not None]

    def require(self) -> None:
        """
        Raises:
            Breach: a rule is broken; the message is the report.
        """
        if self.breaches:
            raise Breach(str(self))

    def __str__(self) -> str:
        lines = [f"{self.subject}: {len(self.findings) - len(self.breaches)} of {len(self.findings)} rules hold"]
        for finding in self.findings:
            remark = f" ({finding.remark})" if finding.remark else ""
            lines.append(f"  {'BROKEN' if finding.breach else 'holds '}  {finding.rule}{remark}")
            if finding.breach:
                lines.append(f"          {finding.breach}")
        if self.unchecked:
            lines.append(f"  {len(self.unchecked)} more rules mean nothing until these hold; they were not checked")
        return "\n".join(lines)


@dataclass(frozen=True)
class Check:
    """A rule in words, and the code that raises Breach where it is broken; may return a remark.

    Where an essential rule is broken, those that are not essential are not checked.
    """

    rule: str
    run: Callable[[], str | None]
    essential: bool = False


def run_checks(subject: str, checks: Sequence[Check]) -> Report:
    """Run all checks; one that raises breaks its rule, and the others go on unless that rule was essential."""
    findings: list[Finding] = []
    unchecked: list[str] = []
    broken = False  # an essential one
    for check in checks:
        if broken and not check.essential:
            unchecked.append(check.rule)
            continue
        try:
            findings.append(Finding(check.rule, None, check.run() or ""))
        except Breach as breach:
            findings.append(Finding(check.rule, str(breach)))
        except Exception as error:  # whatever a foreign part may raise
            findings.append(Finding(check.rule, f"it raised {type(error).__name__}: {error}"))
        broken |= check.essential and findings[-1].breach is not None
    return Report(subject=subject, findings=findings, unchecked=unchecked)


def require(holds: bool, message: str) -> None:
    """
    Raises:
        Breach: the rule does not hold.
    """
    if not holds:
        raise Breach(message)
