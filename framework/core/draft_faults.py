"""Faults of a draft, in words, for the conformance kit and the detailed mode of the loop."""

import torch

from framework.core.draft import Draft, SamplingScheme, Shape

NORMALISED = 1e-3  # tolerance for float32 sums over a large vocabulary


def structure_fault(draft: Draft) -> str | None:
    """The first structural rule that a draft breaks, or None: node order, chain shape, offered nodes."""
    if not draft.num_nodes:
        return None
    index = torch.arange(draft.num_nodes, device=draft.parent.device)
    ordered = ((draft.parent >= -1) & (draft.parent < index)).all(1)
    if not bool(ordered.all()):
        return f"parent is {_first_row(draft, ~ordered)}; a parent comes before its children, and -1 is pending"
    chained = (draft.parent == index - 1).all(1)
    if draft.shape is Shape.CHAIN and not bool(chained.all()):
        return f"shape is CHAIN, and parent is {_first_row(draft, ~chained)}; in a chain, node i's parent is i - 1"
    with_pending = torch.cat([torch.ones_like(draft.valid[:, :1]), draft.valid], 1)
    orphaned = (draft.valid & ~with_pending.gather(1, draft.parent + 1)).any(1)
    if bool(orphaned.any()):
        given = f"valid is {draft.valid[orphaned][0].tolist()} with parent {_first_row(draft, orphaned)}"
        return f"{given}, so a node is valid whose parent is not; a node can only be offered after offered nodes"
    dropped = (draft.tree.elder & ~draft.valid.unsqueeze(1)).any(2)
    if draft.scheme is SamplingScheme.WITHOUT_REPLACEMENT and bool((draft.valid & dropped).any()):
        return (
            "a node drawn WITHOUT_REPLACEMENT is valid and an elder sibling is not; it was drawn from q without the "
            "elder's token, and would be verified as drawn from q: leave out younger siblings first"
        )
    return None


def _first_row(draft: Draft, faulty: torch.Tensor) -> list[int]:
    """The parents of the first faulty row; faulty is [B] bool."""
    return draft.parent[faulty][0].tolist()


def probs_fault(draft: Draft) -> str | None:
    """The fault in the probs of offered nodes, or None; a draft of chosen tokens has no probs."""
    if draft.probs is None:
        return None
    offered = draft.probs[draft.valid]
    if not bool((offered >= 0).all()) or not bool(((offered.sum(1) - 1).abs() < NORMALISED).all()):
        return (
            "the probs of an offered node are negative or do not sum to 1; report the distribution itself, normalised"
        )
    return None
