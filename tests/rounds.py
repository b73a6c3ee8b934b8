"""Rounds made by hand, for what counts them or decides by them."""

from framework.draft import Outcome, Readout


def readout(*rows: tuple[int, int] | tuple[int, int, bool]) -> Readout:
    """A round of rows that were offered and accepted so many nodes; a third entry of False is a finished row."""
    offered, accepted, active = (list(column) for column in zip(*((*row, True)[:3] for row in rows), strict=True))
    return Readout(
        num_nodes=max(offered),
        active=active,
        offered=offered,
        accepted=accepted,
        lost=[kept < number for number, kept in zip(offered, accepted, strict=True)],
        committed=[(kept + 1) * runs for kept, runs in zip(accepted, active, strict=True)],
    )


def told(outcome: Outcome) -> Readout:
    """What the host reads of an outcome."""
    return Readout(
        num_nodes=outcome.draft.num_nodes,
        active=outcome.active.tolist(),
        offered=outcome.draft.offered_depth.tolist(),
        accepted=outcome.num_accepted.tolist(),
        lost=outcome.lost.tolist(),
        committed=outcome.num_committed.tolist(),
    )
