"""Known faults, put in on purpose: a proof that would not see them proves nothing."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.faulty_loops import LOOP_FAULTS
from experiments.faulty_rules import RULE_FAULTS


@dataclass(frozen=True)
class Control:
    """One fault and how it shows. It is measured twice by the same means, without the fault and with it.

    Attributes:
        fault: what is done wrong.
        measure: what is measured, in words.
        run: measures it, with the fault if told so.
        bound: what an exact loop stays at or below, and the fault must exceed.
    """

    fault: str
    measure: str
    run: Callable[[bool], float]
    bound: float


@dataclass(frozen=True)
class Caught:
    """What a control scored without its fault and with it."""

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
        """Whether the fault is seen, and nothing is seen without it."""
        return self.without <= self.bound < self.with_fault


def controls() -> Iterator[Control]:
    """All of them."""
    for fault, run in RULE_FAULTS.items():
        yield Control(fault, "total variation, by enumeration", run, 1e-3)
    for fault, (measure, run) in LOOP_FAULTS.items():
        yield Control(fault, measure, run, 0.0)
