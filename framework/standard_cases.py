"""The standard set of toy models that a rule is held to its law on, and where it is worst."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

import torch

from framework.draft import Law, Shape
from framework.enumeration import TREES, chains, every_draft_of_models, output_law, target_law
from framework.random_tables import KINDS, Tables, logits_of, random_stops, random_supports, random_tables
from framework.sampling import Sampling
from framework.verifiers.verifier import Verifier

SIZES = [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3), (2, 5), (16, 1)]  # vocabulary and gamma
LARGEST_NUMBER_OF_DRAFTS = 1024  # of one case


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
        return _total_variations(verifier, [self], sampling)[0]

    def tables(self, sampling: Sampling) -> tuple[Tables, Tables, Tables, Tables | None]:
        """p, q, what is offered, and the supports of a sparse q."""
        generator = torch.Generator().manual_seed(self.seed)
        p, q = random_tables(self.kind, self.width, self.gamma, generator, narrow=self.form == "sparse")
        if self.standardised:
            q = [sampling.probs(table) for table in logits_of(q)]
        stops = random_stops(self.width, self.gamma, generator)
        offered = stops if self.ragged else [torch.ones_like(table) for table in stops]
        return p, q, offered, random_supports(q, generator) if self.form == "sparse" else None


def _total_variations(verifier: Verifier, cases: Sequence[Case], sampling: Sampling) -> list[float]:
    """Of cases with drafts of one structure, vocabulary and form, counted together."""
    first = cases[0]
    p, q, offered, supports = (
        None if tables[0] is None else [torch.cat(level) for level in zip(*tables, strict=True)]
        for tables in zip(*(case.tables(sampling) for case in cases), strict=True)
    )
    assert p is not None and q is not None
    draft, weights, model = every_draft_of_models(q, first.parent, first.law, first.shape, offered, supports)
    emitted = output_law(verifier, logits_of(p), draft, weights, sampling, model)
    difference = (emitted - target_law(logits_of(p), sampling)).view(len(cases), -1)
    return (difference.abs().sum(1) / 2).tolist()


def standard_cases(law: Law, shape: Shape, sampling: Sampling) -> Iterator[Case]:
    """All KINDS, every form of q, standardised and not, all nodes offered and not, every one of SIZES.

    Chains come with two seeds, since they are few. Left out are structures with too many drafts to be counted quickly.
    """
    forms = ("one_hot",) if law is Law.ONE_HOT else ("dense", "sparse")
    standardised = (False,) if sampling == Sampling() else (False, True)  # without settings they are the same
    seeds = range(2 if shape is Shape.CHAIN else 1)
    sizes = [(width, gamma) for width, gamma in SIZES if shape is not Shape.TREE or gamma in TREES]
    for kind, form, (width, gamma), ragged, made, seed in product(
        KINDS, forms, sizes, (False, True), standardised, seeds
    ):
        case = Case(law, shape, kind, form, width, gamma, ragged, made, seed)
        if law is Law.ONE_HOT or case.width ** len(case.parent) <= LARGEST_NUMBER_OF_DRAFTS:
            yield case


def worst_total_variation(verifier: Verifier, *, law: Law, shape: Shape, sampling: Sampling) -> tuple[float, Case]:
    """How far a rule's output is from the target's law at worst over the standard set, and where.

    An exact rule stays below 1e-12, which is rounding. Takes less than a second.

    Returns:
        The total variation and the first case that has it; NaN and its case if the rule gives no law somewhere.

    Raises:
        ValueError: the rule refuses such drafts.
    """
    verifier.check(law, shape)
    cases = list(standard_cases(law, shape, sampling))
    found: dict[Case, float] = {}
    for _, group in groupby(sorted(cases, key=_structure_and_form), _structure_and_form):
        alike = list(group)
        found.update(zip(alike, _total_variations(verifier, alike, sampling), strict=True))
    worst = max(cases, key=lambda case: math.inf if math.isnan(found[case]) else found[case])
    return found[worst], worst


def _structure_and_form(case: Case) -> tuple[int, int, str]:
    return case.gamma, case.width, case.form
