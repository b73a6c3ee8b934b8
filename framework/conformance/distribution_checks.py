"""Checks over many drafts of one sequence: tokens are drawn from the reported probs, and none is dropped.

B drafts, N nodes, V vocabulary.
"""

from collections import defaultdict

import torch
from torch import Tensor

from framework.conformance.goodness_of_fit import LEAST_EXPECTED, chi_square
from framework.conformance.report import require
from framework.core.draft import Draft, SamplingScheme

LEAST_ROWS = 50  # least number of drafts with equal earlier tokens that are tested as a group
FALSE_ALARM = 1e-9  # false-alarm rate per chi-square test; seeds are fixed, so the result of a check is reproducible


def require_drawn_from_probs(draft: Draft, width: int, tolerance: float) -> int:
    """Require that every node's tokens follow its own distribution, given all earlier nodes.

    Args:
        draft: [B, N] drafts after the same committed tokens, each with its own uniforms.
        width: V.
        tolerance: largest difference between probabilities that should be equal.

    Returns:
        the number of chi-square tests.
    """
    num_tests = 0
    for node in range(draft.num_nodes):
        # Conditioning on all earlier nodes, not only on ancestors, also detects nodes drawn with the same uniform.
        for rows in _groups(draft.tokens[:, :node]):
            _require_follows(draft.rows(rows), node, width, tolerance)
            num_tests += 1
    return num_tests


def _require_follows(draft: Draft, node: int, width: int, tolerance: float) -> None:
    """Require that this node's tokens follow its distribution, in drafts with equal earlier nodes."""
    num_rows = len(draft.tokens)
    distributions = draft.dense_probs(width)[:, node].double().cpu()
    spread = (distributions - distributions[0]).abs().max().item()
    require(
        spread < tolerance,
        f"node {node} reports probs that are {spread:.2g} apart after the same tokens; q may depend on these alone",
    )
    probs = distributions.mean(0)
    if draft.scheme is SamplingScheme.WITHOUT_REPLACEMENT:
        siblings = [other for other in range(node) if draft.parent[0, other] == draft.parent[0, node]]
        probs = probs.index_fill(0, draft.tokens[0, siblings].cpu(), 0.0)
        probs = probs / probs.sum()
    counts = torch.bincount(draft.tokens[:, node].cpu(), minlength=width)
    fit = chi_square(counts, probs * num_rows)
    index = (probs * num_rows < LEAST_EXPECTED).nonzero().flatten() if fit.worst is None else torch.tensor([fit.worst])
    came, said = counts[index].sum().item() / num_rows, probs[index].sum().item()
    which = "a rare token" if fit.worst is None else f"token {fit.worst}"
    require(
        fit.p_value > FALSE_ALARM,
        f"node {node}: {which} came in {came:.1%} of {num_rows} drafts where its probs say {said:.1%} "
        f"(chance {fit.p_value:.0e}). probs must be the very distribution the token was drawn from: a greedy, filtered "
        "or re-ranked token is no draw from it, and every node needs a uniform of its own",
    )


def require_valid_by_ancestors(draft: Draft) -> None:
    """Require that of all drafts in which a node has the same ancestors, all offer it or none does."""
    for node in range(draft.num_nodes):
        for rows in _groups(draft.tokens[:, _ancestors(draft, node)]):
            offered = draft.valid[rows, node].float().mean().item()
            require(
                offered in (0.0, 1.0),
                f"node {node} is offered in {offered:.0%} of {len(rows)} drafts with the same ancestors: valid "
                "depends on something else, such as the node's own token. Dropping a drawn token because it looks weak "
                "biases the output; keep it and stop after it",
            )


def _ancestors(draft: Draft, node: int) -> list[int]:
    found, parent = [], int(draft.parent[0, node])
    while parent >= 0:
        found.append(parent)
        parent = int(draft.parent[0, parent])
    return found


def _groups(tokens: Tensor) -> list[Tensor]:
    """Indices of rows with equal tokens [B, M], for every group large enough to test."""
    by_tokens: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, key in enumerate(tokens.tolist()):
        by_tokens[tuple(key)].append(row)
    return [torch.tensor(rows, device=tokens.device) for rows in by_tokens.values() if len(rows) >= LEAST_ROWS]
