"""Rounds made by hand, for what counts them or decides by them."""

import torch

from framework.draft import DraftedNode, Outcome, Readout
from framework.gamma_policies.gamma_policy import LARGEST


def drafted(*confidences: float, depth: int = 1) -> DraftedNode:
    """A node that each row's drafter gave so much probability to; the rest of its law lies on one other token."""
    confidence = torch.tensor(confidences)
    entry = torch.zeros(len(confidences), dtype=torch.int64)
    return DraftedNode(torch.stack([confidence, 1 - confidence], 1), entry, depth)


def readout(*rows: tuple[int, int] | tuple[int, int, bool], room: int = LARGEST) -> Readout:
    """A round of rows that were offered and accepted so many nodes; a third entry of False is a finished row."""
    offered, accepted, active = (list(column) for column in zip(*((*row, True)[:3] for row in rows), strict=True))
    return Readout(
        num_nodes=max(offered),
        active=active,
        offered=offered,
        accepted=accepted,
        lost=[kept < number for number, kept in zip(offered, accepted, strict=True)],
        committed=[(kept + 1) * runs for kept, runs in zip(accepted, active, strict=True)],
        room=[room] * len(rows),
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
        room=[LARGEST] * len(outcome.active),
    )
