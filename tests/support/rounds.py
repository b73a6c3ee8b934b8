"""Hand-made rounds, for tests of tallies and gamma policies."""

import torch

from framework.core.draft import DraftedNode, Outcome, Readout
from framework.gamma_policies.gamma_policy import LARGEST


def drafted(*confidences: float, depth: int = 1) -> DraftedNode:
    """A drafted node with the given confidence per row; the remaining probability is on one other token."""
    confidence = torch.tensor(confidences)
    entry = torch.zeros(len(confidences), dtype=torch.int64)
    return DraftedNode(torch.stack([confidence, 1 - confidence], 1), entry, depth)


def readout(*rows: tuple[int, int] | tuple[int, int, bool], max_depth: int = LARGEST) -> Readout:
    """A round with (offered, accepted) nodes per row; a third entry of False marks a finished row."""
    offered, accepted, active = (list(column) for column in zip(*((*row, True)[:3] for row in rows), strict=True))
    return Readout(
        num_nodes=max(offered),
        active=active,
        offered=offered,
        accepted=accepted,
        rejected=[kept < number for number, kept in zip(offered, accepted, strict=True)],
        committed=[(kept + 1) * runs for kept, runs in zip(accepted, active, strict=True)],
        max_depth=[max_depth] * len(rows),
    )


def readout_of(outcome: Outcome) -> Readout:
    """Host summary of an outcome."""
    return Readout(
        num_nodes=outcome.draft.num_nodes,
        active=outcome.active.tolist(),
        offered=outcome.draft.offered_depth.tolist(),
        accepted=outcome.num_accepted.tolist(),
        rejected=outcome.rejected.tolist(),
        committed=outcome.num_committed.tolist(),
        max_depth=[LARGEST] * len(outcome.active),
    )
