"""Exact output laws of acceptance rules on toy models: sums over every draft, stop and replacement, without sampling.

A model is a list of tables; tables[i] is [V ** i, V], the law or logits after each prefix of i tokens, prefixes
numbered in base V with the first token as the highest digit. All is float64, so that a rule which keeps the dtype of
what it is given shows errors down to 1e-15. M models may stand one under another in tables [M * V ** i, V]: their
drafts are then counted together, which is much faster than one after another.

B drafts, N nodes, V vocabulary, S support. `parent` is the structure of a draft: the parent of each node,
breadth-first, -1 for a child of pending. [-1, 0, 1] is a chain, [-1, -1, 0, 1] are two, [-1, -1, 0, 0, 1] is a tree.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.random_tables import Tables
from framework.sampling import Sampling, argmax
from framework.verifiers.verifier import Verifier

TREES = {1: [-1, -1, -1], 2: [-1, -1, 0, 0, 1], 3: [-1, -1, 0, 0, 1, 2]}  # by depth


def chains(number: int, gamma: int) -> list[int]:
    """The parents of `number` chains of gamma nodes each."""
    return [max(node - number, -1) for node in range(number * gamma)]


def every_draft(
    q: Tables,
    *,
    parent: Sequence[int],
    law: Law,
    shape: Shape | None = None,
    offered: Tables | None = None,
    supports: Tables | None = None,
) -> tuple[Draft, Tensor]:
    """All drafts of one structure that can be drawn from q, as the rows of one draft, with the probability of each.

    Every node is drawn from q after its own path and, under WITHOUT_REPLACEMENT, without what its earlier siblings
    drew. ONE_HOT drafts are chosen: siblings are q's likeliest tokens in the order of their rank, which leaves one
    draft. A node for which nothing is left to draw or choose is not offered.

    Args:
        q: tables [V ** i, V], one for every depth of the structure.
        parent: the structure.
        law: how siblings are drawn.
        shape: what the draft calls its structure; if None, CHAIN where it is one, else TREE.
        offered: tables [V ** i] bool, whether children are offered after each prefix; None offers every node.
        supports: tables [V ** i, S] int64 of token ids, to hand over q on them only; None hands it over in full.

    Returns:
        The draft, its probs in the dtype of q, and the probability of each row, [B] float64.
    """
    if shape is None:
        shape = Shape.CHAIN if list(parent) == chains(1, len(parent)) else Shape.TREE
    draft, weights, _ = every_draft_of_models(q, parent, law, shape, offered, supports)
    return draft, weights


def every_draft_of_models(
    q: Tables, parent: Sequence[int], law: Law, shape: Shape, offered: Tables | None, supports: Tables | None
) -> tuple[Draft, Tensor, Tensor]:
    """As `every_draft`, of M models at once: their drafts, the probability of each, and its model, [B] int64."""
    width, depth, num_models = q[0].shape[1], _depths(parent), len(q[0])
    model = torch.arange(num_models)
    tokens = torch.empty(num_models, 0, dtype=torch.int64)
    weights = torch.ones(num_models, dtype=torch.float64)
    valid = torch.ones(num_models, 1, dtype=torch.bool)  # of the rows [pending, nodes...]
    prefixes = model.unsqueeze(1)  # of the same rows
    for node, above in enumerate(parent):
        level, prefix = depth[above + 1], prefixes[:, above + 1]
        siblings = [earlier for earlier in range(node) if parent[earlier] == above]
        masses = _masses_left(q[level][prefix].double(), tokens[:, siblings], law)
        is_valid = valid[:, above + 1] & (masses.sum(1) > 0)
        if offered is not None:
            is_valid = is_valid & offered[level][prefix]
        # The token of a node that is not offered does not matter: it is drawn as if it were, where it can be.
        masses = torch.where(masses.sum(1, keepdim=True) > 0, masses, q[level][prefix].double())
        rows, token = masses.nonzero(as_tuple=True)
        weights = weights[rows] * (masses / masses.sum(1, keepdim=True))[rows, token]
        tokens = torch.cat([tokens[rows], token.unsqueeze(1)], 1)
        valid = torch.cat([valid, is_valid.unsqueeze(1)], 1)[rows]
        prefixes = torch.cat([prefixes[rows], (prefix[rows] * width + token).unsqueeze(1)], 1)
        model = model[rows]
    probs, support = None, None
    if law is not Law.ONE_HOT:
        parent_rows = [above + 1 for above in parent]
        probs = _met(q, parent_rows, depth, prefixes)
        if supports is not None:
            support = _met(supports, parent_rows, depth, prefixes)
            probs = probs.gather(2, support)
    parents = torch.tensor(parent).expand(len(tokens), -1)
    return Draft(tokens, parents, valid[:, 1:], law, probs, support, shape), weights, model


def target_rows(logits: Tables, draft: Draft, sampling: Sampling, model: Tensor | None = None) -> TargetRows:
    """What the target's pass over these drafts gives.

    Args:
        logits: the target's tables before temperature.
        draft: the rows that are passed over; all of one structure.
        sampling: makes p from the logits.
        model: [B] int64, whose draft each row is, where the tables hold several models.
    """
    parent = _structure(draft)
    prefixes = _prefixes(draft.tokens, parent, logits[0].shape[1], model)
    return TargetRows(_met(logits, range(draft.num_nodes + 1), _depths(parent), prefixes), draft, sampling)


def output_law(
    verifier: Verifier,
    logits: Tables,
    draft: Draft,
    weights: Tensor,
    sampling: Sampling,
    model: Tensor | None = None,
) -> Tensor:
    """Law of the first tokens that come out of one round and go on with the target, one token per table.

    Args:
        verifier: the rule whose laws are summed.
        logits: the target's tables [V ** i, V] before temperature, at least depth + 1 of them.
        draft: each row a draft that may be proposed; all of one structure.
        weights: [B] float64 probability of each row.
        sampling: makes p from the logits.
        model: [B] int64, whose draft each row is, where the tables hold several models.

    Returns:
        [V ** len(logits)] float64, or the laws of M models one after another. NaN where the rule gives no law: a
        probability that is negative or NaN, or acceptance of a node that is not offered.

    Raises:
        ValueError: the rows of the draft differ in structure.
    """
    parent, width = _structure(draft), logits[0].shape[1]
    depth, prefixes = _depths(parent), _prefixes(draft.tokens, parent, width, model)
    target = target_rows(logits, draft, sampling, model)
    not_offered = torch.cat([torch.zeros(len(weights), 1, dtype=torch.bool), ~draft.valid], 1)
    stop_law = _checked(verifier.stop_law(target, draft), not_offered)
    emitted = torch.zeros(len(logits[0]), dtype=torch.float64)
    for level, table in enumerate(logits):
        # What ended earlier goes on with the target's own law; what ends here is added to it.
        emitted = (emitted.unsqueeze(1) * sampling.probs(table).double()).flatten()
        for row in (row for row in range(len(depth)) if depth[row] == level):
            mass = (weights * stop_law[:, row]).unsqueeze(1)
            replacement = _checked(verifier.replacement(target, draft, torch.full((len(weights),), row)))
            # What follows a stop that cannot happen does not matter.
            ending = torch.where(mass == 0, 0, mass * replacement)
            emitted.view(-1, width).index_add_(0, prefixes[:, row], ending)
    return emitted


def expected_tokens(verifier: Verifier, logits: Tables, draft: Draft, weights: Tensor, sampling: Sampling) -> float:
    """Tokens that one round commits on average, the one after the accepted nodes included; arguments as above."""
    stop_law = verifier.stop_law(target_rows(logits, draft, sampling), draft).double()
    return ((stop_law * (draft.tree.depth + 1)).sum(1) * weights).sum().item()


def joint_law(tables: Tables) -> Tensor:
    """[V ** len(tables)] float64: the law of that many tokens drawn one after another."""
    law = torch.ones(len(tables[0]), dtype=torch.float64)
    for table in tables:
        law = (law.unsqueeze(1) * table.double()).flatten()
    return law


def target_law(logits: Tables, sampling: Sampling) -> Tensor:
    """[V ** len(logits)] float64: the law that is promised for that many tokens."""
    return joint_law([sampling.probs(table) for table in logits])


def total_variation(left: Tensor, right: Tensor) -> float:
    """Half the summed difference of two laws; NaN where one is no law."""
    return (left - right).abs().sum().item() / 2


def _depths(parent: Sequence[int]) -> list[int]:
    """Depth of each row of [pending, nodes...]; pending's is 0."""
    depths = [0]
    for above in parent:
        depths.append(depths[above + 1] + 1)
    return depths


def _prefixes(tokens: Tensor, parent: Sequence[int], width: int, model: Tensor | None) -> Tensor:
    """[B, N + 1] int64: the number of the path that leads to each row of [pending, nodes...]."""
    numbers = [torch.zeros(len(tokens), dtype=torch.int64) if model is None else model]
    for node, above in enumerate(parent):
        numbers.append(numbers[above + 1] * width + tokens[:, node])
    return torch.stack(numbers, 1)


def _met(tables: Tables, rows: Sequence[int], depth: Sequence[int], prefixes: Tensor) -> Tensor:
    """[B, len(rows), ...]: what the tables hold after the paths to these rows of [pending, nodes...]."""
    return torch.stack([tables[depth[row]][prefixes[:, row]] for row in rows], 1)


def _structure(draft: Draft) -> list[int]:
    if (draft.parent != draft.parent[:1]).any():
        raise ValueError("the rows of the draft differ in parent; allowed: one structure for all of them")
    return draft.parent[0].tolist()


def _masses_left(q: Tensor, drawn: Tensor, law: Law) -> Tensor:
    """[B, V]: what the next sibling is drawn from, up to normalisation; q [B, V], drawn [B, siblings] int64."""
    if law is Law.IID:
        return q
    if law is Law.WITHOUT_REPLACEMENT:
        return q.scatter(1, drawn, 0.0)
    best = argmax(q.scatter(1, drawn, -1.0)).unsqueeze(1)
    is_new = (drawn != best).all(1, keepdim=True)
    return torch.zeros_like(q).scatter(1, best, is_new.double())


def _checked(law: Tensor, impossible: Tensor | None = None) -> Tensor:
    """The law in float64, NaN where it is negative, or positive where it must not be."""
    law = law.double()
    wrong = law < 0
    if impossible is not None:
        wrong = wrong | (impossible & (law > 0))
    return law.masked_fill(wrong, torch.nan)
