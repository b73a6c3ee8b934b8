"""Toy models for exact checks: random laws in tables, of kinds that acceptance rules are known to get wrong.

A model is a list of tables; tables[i] is [V ** i, ...], one entry for each prefix of i tokens, prefixes numbered in
base V with the first token as the highest digit. All is float64.
"""

import torch
from torch import Tensor

from framework.sampling import argmax

Tables = list[Tensor]
KINDS = ("random", "zeros", "disjoint", "equal", "almost_equal", "one_hot_p", "one_hot_q", "one_hot_both")


def random_tables(
    kind: str, width: int, depth: int, generator: torch.Generator, *, narrow: bool = False
) -> tuple[Tables, Tables]:
    """A target and a drafter whose laws relate to each other as `kind` says.

    Args:
        kind: one of KINDS.
        width: V, at least 2.
        depth: tokens the drafter looks ahead.
        generator: where the numbers come from.
        narrow: leave every law of q at least one token without mass.

    Returns:
        p, depth + 1 tables [V ** i, V], and q, depth of them, every row summing to 1.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; allowed: {', '.join(KINDS)}")
    p = [_random_law(width**i, width, generator) for i in range(depth + 1)]
    q = [_random_law(width**i, width, generator) for i in range(depth)]
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
    if narrow:
        q = [_normalised(table.masked_fill(table == table.amin(1, keepdim=True), 0)) for table in q]
    if kind == "equal":
        p = [*q, p[-1]]
    if kind == "almost_equal":
        noise = [1 + 1e-13 * torch.randn(table.shape, dtype=table.dtype, generator=generator) for table in q]
        p = [*(_normalised(table * factor) for table, factor in zip(q, noise, strict=True)), p[-1]]
    return p, q


def random_stops(width: int, depth: int, generator: torch.Generator) -> Tables:
    """Whether a drafter goes on after each prefix, 7 times in 10: depth tables [V ** i] bool."""
    return [torch.rand(width**i, generator=generator) < 0.7 for i in range(depth)]


def random_supports(q: Tables, generator: torch.Generator) -> Tables:
    """The V - 1 likeliest tokens of each row of q, in random order: tables [V ** i, V - 1] int64."""
    ids = [table.topk(table.shape[1] - 1).indices for table in q]
    return [table.gather(1, torch.rand(table.shape, generator=generator).argsort(1)) for table in ids]


def logits_of(tables: Tables) -> Tables:
    """Logits of these laws, -inf where there is no mass."""
    return [table.log() for table in tables]


def _random_law(rows: int, width: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.randn(rows, width, dtype=torch.float64, generator=generator)).softmax(1)


def _thinned(law: Tensor, generator: torch.Generator) -> Tensor:
    """About half of the entries without mass, never all."""
    kept = (torch.rand(law.shape, generator=generator) < 0.5) | (_peak(law) > 0)
    return _normalised(law * kept)


def _peak(law: Tensor) -> Tensor:
    return torch.zeros_like(law).scatter(1, argmax(law).unsqueeze(1), 1.0)


def _normalised(masses: Tensor) -> Tensor:
    return masses / masses.sum(1, keepdim=True)
