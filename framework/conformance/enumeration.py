"""Exact output distributions of acceptance rules on toy models, summed over every draft, stop and next token.

A model is a list of tables; tables[i] is [V ** i, V], the distribution or logits after each prefix of i tokens.
Prefixes are numbered in base V, with the first token as the highest digit. All values are float64, so that a rule that
keeps the dtype of its inputs shows errors down to 1e-15. M models may be stacked in tables [M * V ** i, V]: enumerating
their drafts together is much faster than one model after another.

B drafts, N nodes, V vocabulary, S support. `parent` is the structure of a draft: the parent of each node in
breadth-first order, -1 for a child of pending. [-1, 0, 1] is a chain, [-1, -1, 0, 1] are two chains, and
[-1, -1, 0, 0, 1] is a tree.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.conformance.toy_distributions import Tables
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling, argmax
from framework.verifiers.verifier import Verifier

TREES = {1: [-1, -1, -1], 2: [-1, -1, 0, 0, 1], 3: [-1, -1, 0, 0, 1, 2]}  # by depth


def chains(number: int, gamma: int) -> list[int]:
    """Parents of the nodes of `number` chains of gamma nodes each."""
    return [max(node - number, -1) for node in range(number * gamma)]


def every_draft(
    q: Tables,
    *,
    parent: Sequence[int],
    scheme: SamplingScheme,
    shape: Shape | None = None,
    offered: Tables | None = None,
    supports: Tables | None = None,
) -> tuple[Draft, Tensor]:
    """All drafts of one structure that can be drawn from q, as the rows of one draft, with their probabilities.

    Every node is drawn from q after its own path and, under WITHOUT_REPLACEMENT, without the tokens of its earlier
    siblings. ONE_HOT drafts are chosen: siblings are q's most likely tokens in order of rank, so that there is one
    draft. A node without tokens left to draw or choose is not offered.

    Args:
        q: tables [V ** i, V], one for every depth of the structure.
        parent: structure of the drafts.
        scheme: sampling scheme of siblings.
        shape: declared shape of the draft; None: CHAIN if the structure is one, otherwise TREE.
        offered: tables [V ** i] bool, whether children are offered after each prefix; None: every node is offered.
        supports: tables [V ** i, S] int64, token ids of a sparse q; None: q is dense.

    Returns:
        the draft, its probs in the dtype of q, and the probability of each row, [B] float64.
    """
    if shape is None:
        shape = Shape.CHAIN if list(parent) == chains(1, len(parent)) else Shape.TREE
    draft, weights, _ = every_draft_of_models(q, parent, scheme, shape, offered, supports)
    return draft, weights


def every_draft_of_models(
    q: Tables,
    parent: Sequence[int],
    scheme: SamplingScheme,
    shape: Shape,
    offered: Tables | None,
    supports: Tables | None,
) -> tuple[Draft, Tensor, Tensor]:
    """`every_draft` of M stacked models: their drafts, the probability of each, and its model index, [B] int64."""
    width, depth, num_models = q[0].shape[1], _depths(parent), len(q[0])
    model = torch.arange(num_models)
    tokens = torch.empty(num_models, 0, dtype=torch.int64)
    weights = torch.ones(num_models, dtype=torch.float64)
    valid = torch.ones(num_models, 1, dtype=torch.bool)  # of the rows [pending, nodes...]
    prefixes = model.unsqueeze(1)  # of the same rows
    for node, above in enumerate(parent):
        level, prefix = depth[above + 1], prefixes[:, above + 1]
        siblings = [earlier for earlier in range(node) if parent[earlier] == above]
        masses = _masses_left(q[level][prefix].double(), tokens[:, siblings], scheme)
        is_valid = valid[:, above + 1] & (masses.sum(1) > 0)
        if offered is not None:
            is_valid = is_valid & offered[level][prefix]
        # The token of a node that is not offered is irrelevant: if no mass is left, it is drawn from q.
        masses = torch.where(masses.sum(1, keepdim=True) > 0, masses, q[level][prefix].double())
        rows, token = masses.nonzero(as_tuple=True)
        weights = weights[rows] * (masses / masses.sum(1, keepdim=True))[rows, token]
        tokens = torch.cat([tokens[rows], token.unsqueeze(1)], 1)
        valid = torch.cat([valid, is_valid.unsqueeze(1)], 1)[rows]
        prefixes = torch.cat([prefixes[rows], (prefix[rows] * width + token).unsqueeze(1)], 1)
        model = model[rows]
    probs, support = None, None
    if scheme is not SamplingScheme.ONE_HOT:
        parent_rows = [above + 1 for above in parent]
        probs = _met(q, parent_rows, depth, prefixes)
        if supports is not None:
            support = _met(supports, parent_rows, depth, prefixes)
            probs = probs.gather(2, support)
    parents = torch.tensor(parent).expand(len(tokens), -1)
    return Draft(tokens, parents, valid[:, 1:], scheme, probs, support, shape), weights, model


def target_rows(logits: Tables, draft: Draft, sampling: Sampling, model: Tensor | None = None) -> TargetRows:
    """The result of the target's pass over these drafts.

    Args:
        logits: the target's tables before temperature.
        draft: one draft per row, all of one structure.
        sampling: sampling settings that turn logits into p.
        model: [B] int64, model index of each row if the tables hold several models.
    """
    parent = _structure(draft)
    prefixes = _prefixes(draft.tokens, parent, logits[0].shape[1], model)
    return TargetRows(_met(logits, range(draft.num_nodes + 1), _depths(parent), prefixes), draft, sampling)


def output_distribution(
    verifier: Verifier,
    logits: Tables,
    draft: Draft,
    weights: Tensor,
    sampling: Sampling,
    model: Tensor | None = None,
) -> Tensor:
    """Distribution of the first tokens of one round followed by plain target steps, one token per table.

    Args:
        verifier: rule under test.
        logits: the target's tables [V ** i, V] before temperature, at least depth + 1 of them.
        draft: one possible draft per row, all of one structure.
        weights: [B] float64 probability of each row.
        sampling: sampling settings that turn logits into p.
        model: [B] int64, model index of each row if the tables hold several models.

    Returns:
        [V ** len(logits)] float64, or the concatenated distributions of M models. NaN where the rule gives no
        distribution: a probability that is negative or NaN, or acceptance of a node that is not offered.

    Raises:
        ValueError: the rows of the draft differ in structure.
    """
    parent, width = _structure(draft), logits[0].shape[1]
    depth, prefixes = _depths(parent), _prefixes(draft.tokens, parent, width, model)
    target = target_rows(logits, draft, sampling, model)
    not_offered = torch.cat([torch.zeros(len(weights), 1, dtype=torch.bool), ~draft.valid], 1)
    stop_probs = _checked(verifier.stop_probs(target, draft), not_offered)
    emitted = torch.zeros(len(logits[0]), dtype=torch.float64)
    for level, table in enumerate(logits):
        # Rounds that stopped at a smaller depth continue with plain target steps; those that stop here are added.
        emitted = (emitted.unsqueeze(1) * sampling.probs(table).double()).flatten()
        for row in (row for row in range(len(depth)) if depth[row] == level):
            mass = (weights * stop_probs[:, row]).unsqueeze(1)
            next_token_probs = _checked(verifier.next_token_probs(target, draft, torch.full((len(weights),), row)))
            # The next token after an impossible stop is irrelevant.
            ending = torch.where(mass == 0, 0, mass * next_token_probs)
            emitted.view(-1, width).index_add_(0, prefixes[:, row], ending)
    return emitted


def expected_tokens(verifier: Verifier, logits: Tables, draft: Draft, weights: Tensor, sampling: Sampling) -> float:
    """Expected tokens per round, the replaced or bonus token included; arguments as of `output_distribution`."""
    stop_probs = verifier.stop_probs(target_rows(logits, draft, sampling), draft).double()
    return ((stop_probs * (draft.tree.depth + 1)).sum(1) * weights).sum().item()


def joint_distribution(tables: Tables) -> Tensor:
    """[V ** len(tables)] float64: joint distribution of len(tables) successive tokens."""
    probs = torch.ones(len(tables[0]), dtype=torch.float64)
    for table in tables:
        probs = (probs.unsqueeze(1) * table.double()).flatten()
    return probs


def target_distribution(logits: Tables, sampling: Sampling) -> Tensor:
    """[V ** len(logits)] float64: the target's joint distribution of len(logits) successive tokens."""
    return joint_distribution([sampling.probs(table) for table in logits])


def total_variation(left: Tensor, right: Tensor) -> float:
    """Total variation distance of two distributions; NaN if either holds NaN."""
    return (left - right).abs().sum().item() / 2


def _depths(parent: Sequence[int]) -> list[int]:
    """Depth of each row of [pending, nodes...]; 0 for pending."""
    depths = [0]
    for above in parent:
        depths.append(depths[above + 1] + 1)
    return depths


def _prefixes(tokens: Tensor, parent: Sequence[int], width: int, model: Tensor | None) -> Tensor:
    """[B, N + 1] int64: number of the prefix at each row of [pending, nodes...]."""
    numbers = [torch.zeros(len(tokens), dtype=torch.int64) if model is None else model]
    for node, above in enumerate(parent):
        numbers.append(numbers[above + 1] * width + tokens[:, node])
    return torch.stack(numbers, 1)


def _met(tables: Tables, rows: Sequence[int], depth: Sequence[int], prefixes: Tensor) -> Tensor:
    """[B, len(rows), ...]: entries of the tables at the prefixes of these rows of [pending, nodes...]."""
    return torch.stack([tables[depth[row]][prefixes[:, row]] for row in rows], 1)


def _structure(draft: Draft) -> list[int]:
    if (draft.parent != draft.parent[:1]).any():
        raise ValueError("the rows of the draft differ in parent; allowed: one structure for all of them")
    return draft.parent[0].tolist()


def _masses_left(q: Tensor, drawn: Tensor, scheme: SamplingScheme) -> Tensor:
    """[B, V]: unnormalised distribution of the next sibling; q [B, V], drawn [B, siblings] int64."""
    if scheme is SamplingScheme.IID:
        return q
    if scheme is SamplingScheme.WITHOUT_REPLACEMENT:
        return q.scatter(1, drawn, 0.0)
    best = argmax(q.scatter(1, drawn, -1.0)).unsqueeze(1)
    is_new = (drawn != best).all(1, keepdim=True)
    return torch.zeros_like(q).scatter(1, best, is_new.double())


def _checked(probs: Tensor, impossible: Tensor | None = None) -> Tensor:
    """The distribution in float64; NaN where it is negative, or positive where `impossible`."""
    probs = probs.double()
    wrong = probs < 0
    if impossible is not None:
        wrong = wrong | (impossible & (probs > 0))
    return probs.masked_fill(wrong, torch.nan)
