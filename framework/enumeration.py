"""Exact output laws of acceptance rules on toy models: sums over every draft, stop and replacement, without sampling.

A model is a list of tables; tables[i] is [V ** i, V], the law or logits after each prefix of i tokens, prefixes
numbered in base V with the first token as the highest digit. All is float64, so that a rule which keeps the dtype of
what it is given shows errors down to 1e-15.

B drafts, N nodes, V vocabulary, S support. `parent` is the structure of a draft: the parent of each node,
breadth-first, -1 for a child of pending. [-1, 0, 1] is a chain, [-1, -1, 0, 1] are two, [-1, -1, 0, 0, 1] is a tree.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from framework.draft import Draft, Law, Shape, TargetRows
from framework.random_tables import KINDS, Tables, logits_of, random_stops, random_supports, random_tables
from framework.sampling import Sampling, argmax
from framework.verifiers.verifier import Verifier

TREES = {1: [-1, -1, -1], 2: [-1, -1, 0, 0, 1], 3: [-1, -1, 0, 0, 1, 2]}  # by depth
LARGEST_NUMBER_OF_DRAFTS = 1024  # of one case of the standard set


def chains(number: int, gamma: int) -> list[int]:
    """The parents of `number` chains of gamma nodes each."""
    return [max(node - number, -1) for node in range(number * gamma)]


def every_draft(
    q: Tables,
    *,
    parent: Sequence[int],
    law: Law,
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
        offered: tables [V ** i] bool, whether children are offered after each prefix; None offers every node.
        supports: tables [V ** i, S] int64 of token ids, to hand over q on them only; None hands it over in full.

    Returns:
        The draft, its probs in the dtype of q, and the probability of each row, [B] float64.
    """
    width, depth = q[0].shape[1], _depths(parent)
    tokens = torch.empty(1, 0, dtype=torch.int64)
    weights = torch.ones(1, dtype=torch.float64)
    valid = torch.ones(1, 1, dtype=torch.bool)  # of the rows [pending, nodes...]
    for node, above in enumerate(parent):
        level, prefix = depth[above + 1], _prefixes(tokens, parent[:node], width)[:, above + 1]
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
    probs, support = None, None
    if law is not Law.ONE_HOT:
        parent_rows, prefixes = [above + 1 for above in parent], _prefixes(tokens, parent, width)
        probs = _met(q, parent_rows, depth, prefixes)
        if supports is not None:
            support = _met(supports, parent_rows, depth, prefixes)
            probs = probs.gather(2, support)
    parents = torch.tensor(parent).expand(len(tokens), -1)
    return Draft(tokens, parents, valid[:, 1:], law, probs, support), weights


def target_rows(logits: Tables, draft: Draft, sampling: Sampling) -> TargetRows:
    """What the target's pass over these drafts gives; logits are its tables before temperature."""
    parent = _structure(draft)
    prefixes = _prefixes(draft.tokens, parent, logits[0].shape[1])
    return TargetRows(_met(logits, range(draft.num_nodes + 1), _depths(parent), prefixes), draft, sampling)


def output_law(verifier: Verifier, logits: Tables, draft: Draft, weights: Tensor, sampling: Sampling) -> Tensor:
    """Law of the first tokens that come out of one round and go on with the target, one token per table.

    Args:
        verifier: the rule whose laws are summed.
        logits: the target's tables [V ** i, V] before temperature, at least depth + 1 of them.
        draft: each row a draft that may be proposed; all of one structure.
        weights: [B] float64 probability of each row.
        sampling: makes p from the logits.

    Returns:
        [V ** len(logits)] float64. NaN where the rule gives no law: a probability that is negative or NaN, or
        acceptance of a node that is not offered.

    Raises:
        ValueError: the rows of the draft differ in structure.
    """
    parent, width = _structure(draft), logits[0].shape[1]
    depth, prefixes = _depths(parent), _prefixes(draft.tokens, parent, width)
    target = target_rows(logits, draft, sampling)
    not_offered = torch.cat([torch.zeros(len(weights), 1, dtype=torch.bool), ~draft.valid], 1)
    stop_law = _checked(verifier.stop_law(target, draft), not_offered)
    emitted = torch.zeros(1, dtype=torch.float64)
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


def joint_law(tables: Tables) -> Tensor:
    """[V ** len(tables)] float64: the law of that many tokens drawn one after another."""
    law = torch.ones(1, dtype=torch.float64)
    for table in tables:
        law = (law.unsqueeze(1) * table.double()).flatten()
    return law


def target_law(logits: Tables, sampling: Sampling) -> Tensor:
    """[V ** len(logits)] float64: the law that is promised for that many tokens."""
    return joint_law([sampling.probs(table) for table in logits])


def total_variation(left: Tensor, right: Tensor) -> float:
    """Half the summed difference of two laws; NaN where one is no law."""
    return (left - right).abs().sum().item() / 2


@dataclass(frozen=True)
class Case:
    """One member of the standard set; everything about it follows from these fields."""

    law: Law
    shape: Shape
    kind: str  # of KINDS: how p and q relate
    form: str  # how q is handed over: dense, sparse or one_hot
    width: int  # V
    gamma: int  # depth of the structure
    ragged: bool  # whether the drafter stops early after some prefixes
    standardised: bool  # whether q, too, went through the sampling, as most drafters' does
    seed: int

    def __str__(self) -> str:
        stops = "some nodes not offered" if self.ragged else "all nodes offered"
        made = "standardised like p" if self.standardised else "not standardised"
        return (
            f"{self.kind} laws, {self.form} q {made}, {self.law.name} {self.shape.name} of gamma {self.gamma}, "
            f"{stops}, vocabulary {self.width}, seed {self.seed}"
        )

    @property
    def parent(self) -> list[int]:
        """The structure: one chain, two chains, or one of TREES."""
        if self.shape is Shape.TREE:
            return TREES[self.gamma]
        return chains(1 if self.shape is Shape.CHAIN else 2, self.gamma)

    def total_variation(self, verifier: Verifier, sampling: Sampling) -> float:
        """Between the first gamma + 1 tokens of the rule and of the target; NaN where the rule gives no law."""
        generator = torch.Generator().manual_seed(self.seed)
        p, q = random_tables(self.kind, self.width, self.gamma, generator, narrow=self.form == "sparse")
        if self.standardised:
            q = [sampling.probs(table) for table in logits_of(q)]
        draft, weights = every_draft(
            q,
            parent=self.parent,
            law=self.law,
            offered=random_stops(self.width, self.gamma, generator) if self.ragged else None,
            supports=random_supports(q, generator) if self.form == "sparse" else None,
        )
        emitted = output_law(verifier, logits_of(p), draft, weights, sampling)
        return total_variation(emitted, target_law(logits_of(p), sampling))


def standard_cases(law: Law, shape: Shape, sampling: Sampling) -> Iterator[Case]:
    """All KINDS, every form of q, standardised and not, all nodes offered and not, gamma 1 to 3, two seeds.

    Left out are structures with too many drafts to be counted quickly.
    """
    forms = ("one_hot",) if law is Law.ONE_HOT else ("dense", "sparse")
    standardised = (False,) if sampling == Sampling() else (False, True)  # without settings they are the same
    for settings in product(KINDS, forms, (3, 4), (1, 2, 3), (False, True), standardised, range(2)):
        case = Case(law, shape, *settings)
        if law is Law.ONE_HOT or case.width ** len(case.parent) <= LARGEST_NUMBER_OF_DRAFTS:
            yield case


def worst_total_variation(verifier: Verifier, *, law: Law, shape: Shape, sampling: Sampling) -> tuple[float, Case]:
    """How far a rule's output is from the target's law at worst over the standard set, and where.

    An exact rule stays below 1e-12, which is rounding. Takes about a second.

    Returns:
        The total variation and the first case that has it; NaN and its case if the rule gives no law somewhere.

    Raises:
        ValueError: the rule refuses such drafts.
    """
    verifier.check(law, shape)
    found = [(case.total_variation(verifier, sampling), case) for case in standard_cases(law, shape, sampling)]
    return max(found, key=lambda pair: math.inf if math.isnan(pair[0]) else pair[0])


def _depths(parent: Sequence[int]) -> list[int]:
    """Depth of each row of [pending, nodes...]; pending's is 0."""
    depths = [0]
    for above in parent:
        depths.append(depths[above + 1] + 1)
    return depths


def _prefixes(tokens: Tensor, parent: Sequence[int], width: int) -> Tensor:
    """[B, N + 1] int64: the number of the path that leads to each row of [pending, nodes...]."""
    numbers = [torch.zeros(len(tokens), dtype=torch.int64)]
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
