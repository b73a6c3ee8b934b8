"""The standard set of toy models for exactness checks of acceptance rules, and a rule's worst case on it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, product

import torch

from framework.conformance.enumeration import (
    TREES,
    chains,
    every_draft_of_models,
    output_distribution,
    target_distribution,
)
from framework.conformance.toy_distributions import (
    KINDS,
    Tables,
    logits_of,
    random_stops,
    random_supports,
    random_tables,
)
from framework.core.draft import SamplingScheme, Shape
from framework.core.sampling import Sampling
from framework.verifiers.verifier import Verifier

SIZES = [(3, 1), (3, 2), (3, 3), (4, 1), (4, 2), (4, 3), (2, 5), (16, 1)]  # vocabulary and gamma
LARGEST_NUMBER_OF_DRAFTS = 1024  # per case
# Total variation of an exact rule: each of at most six tokens adds a few rounding errors, of 1e-16 or 6e-8.
ROUNDING_OF = {torch.float64: 1e-12, torch.float32: 1e-6}


@dataclass(frozen=True)
class Case:
    """One member of the standard set, fully determined by these fields."""

    scheme: SamplingScheme
    shape: Shape
    kind: str  # one of KINDS: relation of p and q
    form: str  # representation of q: dense, sparse or one_hot
    width: int  # V
    gamma: int  # depth of the structure
    ragged: bool  # whether the drafter stops early after some prefixes
    standardised: bool  # whether the sampling settings apply to q as well, as with most drafters
    seed: int
    dtype: torch.dtype = torch.float64  # dtype of p and q

    def __str__(self) -> str:
        stops = "some nodes not offered" if self.ragged else "all nodes offered"
        made = "standardised like p" if self.standardised else "not standardised"
        return (
            f"{self.kind} distributions, {self.form} q {made}, {self.scheme.name} {self.shape.name} of gamma "
            f"{self.gamma}, {stops}, vocabulary {self.width}, seed {self.seed}, {self.dtype}"
        )

    @property
    def parent(self) -> list[int]:
        """The structure: one chain, two chains, or one of TREES."""
        if self.shape is Shape.TREE:
            return TREES[self.gamma]
        return chains(1 if self.shape is Shape.CHAIN else 2, self.gamma)

    def total_variation(self, verifier: Verifier, sampling: Sampling) -> float:
        """Total variation between rule and target over the first gamma + 1 tokens.

        NaN where the rule gives no distribution.
        """
        return _total_variations(verifier, [self], sampling)[0]

    def tables(self, sampling: Sampling) -> tuple[Tables, Tables, Tables, Tables | None]:
        """Tables of p, q and offered nodes, and the supports of a sparse q."""
        generator = torch.Generator().manual_seed(self.seed)
        narrow = self.form == "sparse"
        p, q = random_tables(self.kind, self.width, self.gamma, generator, narrow=narrow, dtype=self.dtype)
        if self.standardised:
            q = [sampling.probs(table) for table in logits_of(q)]
        stops = random_stops(self.width, self.gamma, generator)
        offered = stops if self.ragged else [torch.ones_like(table) for table in stops]
        return p, q, offered, random_supports(q, generator) if self.form == "sparse" else None


def _total_variations(verifier: Verifier, cases: Sequence[Case], sampling: Sampling) -> list[float]:
    """Total variations of cases with equal structure, vocabulary and form of q, enumerated together."""
    first = cases[0]
    p, q, offered, supports = _tables(
        tuple(replace(case, scheme=SamplingScheme.IID, shape=Shape.CHAIN) for case in cases), sampling
    )
    draft, weights, model = every_draft_of_models(q, first.parent, first.scheme, first.shape, offered, supports)
    emitted = output_distribution(verifier, logits_of(p), draft, weights, sampling, model)
    difference = (emitted - target_distribution(logits_of(p), sampling)).view(len(cases), -1)
    return (difference.abs().sum(1) / 2).tolist()


@lru_cache(maxsize=512)  # many rules are held to the same set
def _tables(cases: Sequence[Case], sampling: Sampling) -> tuple[Tables, Tables, Tables | None, Tables | None]:
    """The tables of several cases, one under another; scheme and shape do not matter."""
    p, q, offered, supports = (
        None if tables[0] is None else [torch.cat(level) for level in zip(*tables, strict=True)]
        for tables in zip(*(case.tables(sampling) for case in cases), strict=True)
    )
    assert p is not None and q is not None
    return p, q, offered, supports


def standard_cases(
    scheme: SamplingScheme, shape: Shape, sampling: Sampling, dtype: torch.dtype = torch.float64
) -> Iterator[Case]:
    """All combinations of KINDS, forms of q, standardised or not, all nodes offered or not, and SIZES.

    Chains have two seeds, since they have few cases. Structures with too many drafts for a quick enumeration are left
    out.
    """
    forms = ("one_hot",) if scheme is SamplingScheme.ONE_HOT else ("dense", "sparse")
    standardised = (False,) if sampling == Sampling() else (False, True)  # the default sampling leaves q unchanged
    seeds = range(2 if shape is Shape.CHAIN else 1)
    sizes = [(width, gamma) for width, gamma in SIZES if shape is not Shape.TREE or gamma in TREES]
    for kind, form, (width, gamma), ragged, made, seed in product(
        KINDS, forms, sizes, (False, True), standardised, seeds
    ):
        case = Case(scheme, shape, kind, form, width, gamma, ragged, made, seed, dtype)
        if scheme is SamplingScheme.ONE_HOT or case.width ** len(case.parent) <= LARGEST_NUMBER_OF_DRAFTS:
            yield case


def worst_total_variation(
    verifier: Verifier, *, scheme: SamplingScheme, shape: Shape, sampling: Sampling, dtype: torch.dtype = torch.float64
) -> tuple[float, Case]:
    """Largest total variation between a rule's output and the target over the standard set, and its case.

    An exact rule stays below ROUNDING_OF its dtype. Takes about a second.

    Args:
        dtype: dtype of p and q: float64, or float32 as in models.

    Returns:
        the total variation and the first case that attains it; NaN and its case if the rule gives no distribution
        somewhere.

    Raises:
        ValueError: the rule does not verify such drafts.
    """
    verifier.check(scheme, shape)
    cases = list(standard_cases(scheme, shape, sampling, dtype))
    found: dict[Case, float] = {}
    for _, group in groupby(sorted(cases, key=_structure_and_form), _structure_and_form):
        alike = list(group)
        found.update(zip(alike, _total_variations(verifier, alike, sampling), strict=True))
    worst = max(cases, key=lambda case: math.inf if math.isnan(found[case]) else found[case])
    return found[worst], worst


def _structure_and_form(case: Case) -> tuple[int, int, str]:
    return case.gamma, case.width, case.form
