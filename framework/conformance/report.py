"""The result of a conformance check, in words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


class Breach(AssertionError):
    """A part breaks its contract; the message gives the returned value and the remedy."""


@dataclass(frozen=True)
class Finding:
    """The result of checking one rule of a contract.

    Attributes:
        rule: the rule in words.
        breach: the returned value and the remedy; None: the rule holds.
        remark: measurements of the check; may be empty.
    """

    rule: str
    breach: str | None
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """The results for every rule that applies to a part, in the order checked.

    Attributes:
        part: name of the part.
        findings: one per checked rule.
        unchecked: rules that were not checked because an essential one is broken.
    """

    part: str
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
        lines = [f"{self.part}: {len(self.findings) - len(self.breaches)} of {len(self.findings)} rules hold"]
        for finding in self.findings:
            remark = f" ({finding.remark})" if finding.remark else ""
            lines.append(f"  {'BROKEN' if finding.breach else 'holds '}  {finding.rule}{remark}")
            if finding.breach:
                lines.append(f"          {finding.breach}")
        if self.unchecked:
            lines.append(f"  {len(self.unchecked)} more rules were not checked, since an essential one is broken")
        return "\n".join(lines)


@dataclass(frozen=True)
class Check:
    """A rule in words, and a function that raises Breach if it is broken and may return a remark.

    If an essential rule is broken, rules that are not essential are not checked.
    """

    rule: str
    run: Callable[[], str | None]
    essential: bool = False


def run_checks(part: str, checks: Sequence[Check]) -> Report:
    """Run all checks. One that raises breaks its rule; the others still run, unless that rule is essential."""
    findings: list[Finding] = []
    unchecked: list[str] = []
    broken = False  # whether an essential rule is broken
    for check in checks:
        if broken and not check.essential:
            unchecked.append(check.rule)
            continue
        try:
            findings.append(Finding(check.rule, None, check.run() or ""))
        except Breach as breach:
            findings.append(Finding(check.rule, str(breach)))
        except Exception as error:  # the part may raise anything
            findings.append(Finding(check.rule, f"it raised {type(error).__name__}: {error}"))
        broken |= check.essential and findings[-1].breach is not None
    return Report(part=part, findings=findings, unchecked=unchecked)


def require(holds: bool, message: str) -> None:
    """
    Raises:
        Breach: the rule does not hold.
    """
    if not holds:
        raise Breach(message)
