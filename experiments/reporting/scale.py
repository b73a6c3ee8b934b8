"""Axis scales of charts: values to positions."""

import math
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Tick:
    """An axis label and its position."""

    text: str
    at: float


@dataclass(frozen=True)
class Scale:
    """Linear or base-2 logarithmic scale from values to positions.

    Attributes:
        least, most: range of the values.
        start, end: positions of least and most.
        in_powers: whether the scale is logarithmic; requires values above 0.
    """

    least: float
    most: float
    start: float = 0.0
    end: float = 100.0
    in_powers: bool = False

    def at(self, value: float) -> float:
        """Position of a value, rounded to 0.01; values outside the range are clipped to it."""
        least, most, value = (math.log2(each) if self.in_powers else each for each in (self.least, self.most, value))
        share = (min(max(value, least), most) - least) / (most - least)
        return round(self.start + share * (self.end - self.start), 2)

    def between(self, before: float, after: float, share: float) -> float:
        """The value at a share of the way from one value to another."""
        if self.in_powers:
            return before * (after / before) ** share
        return before + share * (after - before)

    def ticks(self, number: int = 6) -> list[Tick]:
        """Ticks at about `number` round values within the range."""
        if self.in_powers:
            powers = range(math.ceil(math.log2(self.least)), math.floor(math.log2(self.most)) + 1)
            every = max(1, math.ceil(len(powers) / number))
            values = [2.0**power for power in powers if power % every == 0]
        else:
            values = [float(value) for value in MaxNLocator(number, steps=[1, 2, 5, 10]).tick_values(0, self.most)]
        return [Tick(f"{value:g}", self.at(value)) for value in values if self.least <= value <= self.most]
