"""Negative controls: injected faults that the proof must detect."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.proof.faulty_loops import LOOP_FAULTS
from experiments.proof.faulty_rules import RULE_FAULTS


@dataclass(frozen=True)
class Control:
    """One fault with its measure, which is taken without and with the fault.

    Attributes:
        fault: description of the fault.
        measure: description of the measure.
        run: function that takes the measure; its argument says whether to inject the fault.
        bound: upper bound for an exact loop; the fault must exceed it.
    """

    fault: str
    measure: str
    run: Callable[[bool], float]
    bound: float


@dataclass(frozen=True)
class Caught:
    """Result of a control, without and with its fault."""

    fault: str
    measure: str
    without: float
    with_fault: float
    bound: float

    @classmethod
    def of(cls, control: Control) -> "Caught":
        return cls(control.fault, control.measure, control.run(False), control.run(True), control.bound)

    @property
    def holds(self) -> bool:
        """Whether the measure exceeds the bound with the fault and only with it."""
        return self.without <= self.bound < self.with_fault


def controls() -> Iterator[Control]:
    """Iterate over all controls."""
    for fault, run in RULE_FAULTS.items():
        yield Control(fault, "total variation, by enumeration", run, 1e-3)
    for fault, (measure, run) in LOOP_FAULTS.items():
        yield Control(fault, measure, run, 0.0)
