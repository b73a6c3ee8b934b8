"""Toy models for exact checks: tables of random distributions, of kinds that acceptance rules often get wrong.

A model is a list of tables; tables[i] is [V ** i, ...], one entry for each prefix of i tokens. Prefixes are numbered in
base V, with the first token as the highest digit. All values are float64, unless float32 is requested.
"""

import torch
from torch import Tensor

from framework.core.sampling import argmax

Tables = list[Tensor]
KINDS = (
    "random",
    "zeros",
    "disjoint",
    "equal",
    "almost_equal",
    "one_hot_p",
    "one_hot_q",
    "one_hot_both",
    "subnormal_p",
    "subnormal_q",
    "subnormal_both",
)


def random_tables(
    kind: str,
    width: int,
    depth: int,
    generator: torch.Generator,
    *,
    narrow: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tables, Tables]:
    """Distributions of a target and a drafter, related as given by `kind`.

    Args:
        kind: one of KINDS.
        width: V, at least 2.
        depth: depth of the drafts.
        generator: random number generator.
        narrow: whether every distribution of q has at least one token without mass.
        dtype: dtype of the tables; determines which masses are subnormal.

    Returns:
        p, depth + 1 tables [V ** i, V], and q, depth such tables; every row sums to 1.

    Raises:
        ValueError: unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed: {', '.join(KINDS)}")
    p = [_random_probs(width**i, width, generator) for i in range(depth + 1)]
    q = [_random_probs(width**i, width, generator) for i in range(depth)]
    if kind == "zeros":
        p, q = [_thinned(table, generator) for table in p], [_thinned(table, generator) for table in q]
    if kind == "disjoint":
        cuts = [torch.randint(1, width, (len(table), 1), generator=generator) for table in p]
        p = [_normalised(table * (torch.arange(width) < cut)) for table, cut in zip(p, cuts, strict=True)]
        q = [_normalised(table * (torch.arange(width) >= cut)) for table, cut in zip(q, cuts, strict=False)]
    if kind in ("one_hot_p", "one_hot_both"):
        p = [_peak(table) for table in p]
    if kind in ("one_hot_q", "one_hot_both"):
        q = [_peak(table) for table in q]
    if kind in ("subnormal_p", "subnormal_both"):
        p = [_subnormal(table, dtype, generator) for table in p]
    if kind in ("subnormal_q", "subnormal_both"):
        q = [_subnormal(table, dtype, generator) for table in q]
    if narrow:
        q = [_normalised(table.masked_fill(table == table.amin(1, keepdim=True), 0)) for table in q]
    if kind == "equal":
        p = [*q, p[-1]]
    if kind == "almost_equal":
        noise = [1 + 1e-13 * torch.randn(table.shape, dtype=table.dtype, generator=generator) for table in q]
        p = [*(_normalised(table * factor) for table, factor in zip(q, noise, strict=True)), p[-1]]
    return [table.to(dtype) for table in p], [table.to(dtype) for table in q]


def random_stops(width: int, depth: int, generator: torch.Generator) -> Tables:
    """Whether a drafter continues after each prefix, with probability 0.7: depth tables [V ** i] bool."""
    return [torch.rand(width**i, generator=generator) < 0.7 for i in range(depth)]


def random_supports(q: Tables, generator: torch.Generator) -> Tables:
    """The V - 1 most likely tokens of each row of q, in random order: tables [V ** i, V - 1] int64."""
    ids = [table.topk(table.shape[1] - 1).indices for table in q]
    return [table.gather(1, torch.rand(table.shape, generator=generator).argsort(1)) for table in ids]


def logits_of(tables: Tables) -> Tables:
    """Logits of these distributions, -inf where there is no mass."""
    return [table.log() for table in tables]


def _random_probs(rows: int, width: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.randn(rows, width, dtype=torch.float64, generator=generator)).softmax(1)


def _thinned(probs: Tensor, generator: torch.Generator) -> Tensor:
    """The distributions with about half of their entries set to 0, but never all."""
    kept = (torch.rand(probs.shape, generator=generator) < 0.5) | (_peak(probs) > 0)
    return _normalised(probs * kept)


def _subnormal(probs: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """All mass on the most likely token; the others have 1 to 1e-6 times the smallest normal number of `dtype`."""
    magnitudes = -6 * torch.rand(probs.shape, dtype=probs.dtype, generator=generator)
    return torch.where(_peak(probs) > 0, 1.0, torch.finfo(dtype).tiny * 10**magnitudes)


def _peak(probs: Tensor) -> Tensor:
    return torch.zeros_like(probs).scatter(1, argmax(probs).unsqueeze(1), 1.0)


def _normalised(masses: Tensor) -> Tensor:
    return masses / masses.sum(1, keepdim=True)
