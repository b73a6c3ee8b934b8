"""What can only be seen in many drafts of one sequence: that tokens were drawn as reported, and none dropped.

B drafts, N nodes, V vocabulary.
"""

from collections import defaultdict

import torch
from torch import Tensor

from framework.conformance.report import require
from framework.draft import Draft, Law
from framework.goodness_of_fit import LEAST_EXPECTED, chi_square

LEAST_ROWS = 50  # drafts that share their earlier tokens, to be tested as a group
FALSE_ALARM = 1e-9  # of one chi-square test; seeds are fixed, so a check says the same every time


def require_drawn_from_probs(draft: Draft, width: int, tolerance: float) -> int:
    """Every node's tokens follow its own law, given all earlier nodes.

    Args:
        draft: [B, N] drafts after the same committed tokens, each with uniforms of its own.
        width: V.
        tolerance: how far laws may be apart that ought to be equal.

    Returns:
        the number of chi-square tests made.
    """
    num_tests = 0
    for node in range(draft.num_nodes):
        # Given all earlier nodes, not the ancestors alone: so nodes drawn with the same uniform are told, too.
        for rows in _groups(draft.tokens[:, :node]):
            _require_follows(draft.rows(rows), node, width, tolerance)
            num_tests += 1
    return num_tests


def _require_follows(draft: Draft, node: int, width: int, tolerance: float) -> None:
    """Drafts that agree in all earlier nodes: this node's tokens against its law."""
    num_rows = len(draft.tokens)
    laws = draft.dense_probs(width)[:, node].double().cpu()
    spread = (laws - laws[0]).abs().max().item()
    require(
        spread < tolerance,
        f"node {node} reports probs that are {spread:.2g} apart after the same tokens; q may depend on nothing else",
    )
    law = laws.mean(0)
    if draft.law is Law.WITHOUT_REPLACEMENT:
        siblings = [other for other in range(node) if draft.parent[0, other] == draft.parent[0, node]]
        law = law.index_fill(0, draft.tokens[0, siblings].cpu(), 0.0)
        law = law / law.sum()
    counts = torch.bincount(draft.tokens[:, node].cpu(), minlength=width)
    fit = chi_square(counts, law * num_rows)
    index = (law * num_rows < LEAST_EXPECTED).nonzero().flatten() if fit.worst is None else torch.tensor([fit.worst])
    came, said = counts[index].sum().item() / num_rows, law[index].sum().item()
    which = "a token that is rare" if fit.worst is None else f"token {fit.worst}"
    require(
        fit.p_value > FALSE_ALARM,
        f"node {node}: {which} came in {came:.1%} of {num_rows} drafts where its probs say {said:.1%} "
        f"(chance {fit.p_value:.0e}). probs must be the very law the token was drawn from: a greedy, filtered or "
        "re-ranked token is no draw from it, and every node needs a uniform of its own",
    )


def require_valid_by_ancestors(draft: Draft) -> None:
    """Drafts whose node has the same ancestors offer it all, or none of them does."""
    for node in range(draft.num_nodes):
        for rows in _groups(draft.tokens[:, _ancestors(draft, node)]):
            offered = draft.valid[rows, node].float().mean().item()
            require(
                offered in (0.0, 1.0),
                f"node {node} is offered in {offered:.0%} of {len(rows)} drafts whose ancestors are the same: that "
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
    """Indices of the rows that are equal in tokens [B, M], for every group large enough to test."""
    by_tokens: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, key in enumerate(tokens.tolist()):
        by_tokens[tuple(key)].append(row)
    return [torch.tensor(rows, device=tokens.device) for rows in by_tokens.values() if len(rows) >= LEAST_ROWS]
