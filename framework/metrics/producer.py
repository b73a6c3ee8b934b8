"""Producer of every committed token: the drafter, or the target in place of or after a drafted token."""

from typing import Literal

from framework.core.draft import Readout

Producer = Literal["accepted", "replaced", "bonus", "plain"]
MEANINGS: dict[Producer, str] = {
    "accepted": "drafted, and kept",
    "replaced": "the target's, in place of a drafted one",
    "bonus": "the target's, after a draft kept whole",
    "plain": "the target's, where nothing was drafted",  # such as the first token of a row
}


def producers(readout: Readout, row: int) -> list[Producer]:
    """Producers of the tokens that a row committed in a round, in order."""
    kept, accepted = readout.committed[row], readout.accepted[row]
    drafted: list[Producer] = ["accepted"] * min(kept, accepted)
    if kept <= accepted:  # an accepted token ended the row
        return drafted
    if readout.rejected[row]:
        return [*drafted, "replaced"]
    return [*drafted, "bonus" if readout.offered[row] else "plain"]
