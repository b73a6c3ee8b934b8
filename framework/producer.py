"""Who produced every committed token: the drafter, or the target in its place or behind it."""

from typing import Literal

from framework.draft import Readout

Producer = Literal["accepted", "replaced", "bonus", "plain"]
MEANINGS: dict[Producer, str] = {
    "accepted": "drafted, and kept",
    "replaced": "the target's, in place of a drafted one",
    "bonus": "the target's, behind a draft kept whole",
    "plain": "the target's, where nothing was drafted",  # as for the first token of a row
}


def producers(readout: Readout, row: int) -> list[Producer]:
    """Of each token that a row kept of a round, in order."""
    kept, accepted = readout.committed[row], readout.accepted[row]
    drafted: list[Producer] = ["accepted"] * min(kept, accepted)
    if kept <= accepted:  # an accepted token ended the row
        return drafted
    if readout.lost[row]:
        return [*drafted, "replaced"]
    return [*drafted, "bonus" if readout.offered[row] else "plain"]
