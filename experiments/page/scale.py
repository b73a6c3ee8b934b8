"""From quantities to places in a picture."""

import math
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator


@dataclass(frozen=True)
class Tick:
    """A value that an axis names, and where it stands."""

    text: str
    at: float


@dataclass(frozen=True)
class Scale:
    """A stretch from 0, or from `least` in powers of 2, drawn between two places.

    Attributes:
        least, most: the ends of the values.
        start, end: where these stand.
        in_powers: whether each doubling takes the same room.
    """

    least: float
    most: float
    start: float = 0.0
    end: float = 100.0
    in_powers: bool = False

    def at(self, value: float) -> float:
        """Where a value stands, to a hundredth; what is beyond an end stands there."""
        least, most, value = (math.log2(each) if self.in_powers else each for each in (self.least, self.most, value))
        share = (min(max(value, least), most) - least) / (most - least)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, number: int = 6) -> list[Tick]:
        """Round values within the scale, at most so many."""
        if self.in_powers:
            powers = range(math.ceil(math.log2(self.least)), math.floor(math.log2(self.most)) + 1)
            every = max(1, math.ceil(len(powers) / number))
            values = [2.0**power for power in powers if power % every == 0]
        else:
            values = [float(value) for value in MaxNLocator(number, steps=[1, 2, 5, 10]).tick_values(0, self.most)]
        return [Tick(f"{value:g}", self.at(value)) for value in values if self.least <= value <= self.most]
