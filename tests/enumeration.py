"""Exact output laws on toy models: sums over every draft, stop and replacement, so without sampling error.

A model is a list of tables: tables[i] is [V ** i, ...], one entry for each prefix of i tokens, prefixes numbered in
base V. Everything is float64 unless told otherwise.
"""

import torch
from torch import Tensor

from framework.draft import Draft, Law, TargetRows
from framework.sampling import Sampling, argmax
from framework.verifiers.verifier import Verifier

Tables = list[Tensor]
KINDS = ("random", "zeros", "disjoint", "equal", "almost_equal", "one_hot_p", "one_hot_q", "one_hot_both")


def toy(kind: str, width: int, gamma: int, random: torch.Generator, *, narrow: bool = False) -> tuple[Tables, Tables]:
    """Tables p (gamma + 1 of them) and q (gamma) of one of the KINDS; narrow leaves q at least one zero per row."""
    p = [_random_law(width**depth, width, random) for depth in range(gamma + 1)]
    q = [_random_law(width**depth, width, random) for depth in range(gamma)]
    if kind == "zeros":
        p, q = [_thinned(table, random) for table in p], [_thinned(table, random) for table in q]
    if kind == "disjoint":
        cuts = [torch.randint(1, width, (len(table), 1), generator=random) for table in p]
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
        p = [*(_normalised(t * (1 + 1e-13 * torch.randn(t.shape, dtype=t.dtype, generator=random))) for t in q), p[-1]]
    return p, q


def log(tables: Tables) -> Tables:
    """Logits of these laws, -inf where there is no mass."""
    return [table.log() for table in tables]


def offers(width: int, gamma: int, random: torch.Generator) -> Tables:
    """Whether a drafter goes on after each prefix, 7 times in 10: a stop that depends on ancestors only."""
    return [torch.rand(width**depth, generator=random) < 0.7 for depth in range(gamma)]


def every_draft(
    q: Tables, *, offered: Tables | None = None, supports: Tables | None = None, law: Law = Law.IID
) -> tuple[Draft, Tensor]:
    """All chains that can be drawn from q, as the rows of one draft, with the probability of each.

    Args:
        q: gamma tables [V ** i, V].
        offered: gamma tables [V ** i] bool; None offers every node.
        supports: gamma tables [V ** i, S] of token ids, to hand over q on them only; None hands it over in full.
    """
    width, gamma = q[0].shape[1], len(q)
    weights = joint_law(q)
    places = width ** torch.arange(gamma - 1, -1, -1)
    tokens = torch.arange(width**gamma).unsqueeze(1) // places % width
    drawn = weights > 0
    tokens, weights = tokens[drawn], weights[drawn]
    probs, support = along(q, tokens, width), None
    if supports is not None:
        support = along(supports, tokens, width)
        probs = probs.gather(2, support)
    return Draft.chain(tokens, law, probs=probs, support=support, valid=_valid(offered, tokens, width)), weights


def chosen_draft(q: Tables, *, offered: Tables | None = None) -> tuple[Draft, Tensor]:
    """The one chain of a drafter that always takes q's likeliest token."""
    width = q[0].shape[1]
    tokens = torch.empty(1, 0, dtype=torch.int64)
    for depth in range(len(q)):
        law = along(q[: depth + 1], tokens, width)[:, -1]
        tokens = torch.cat([tokens, argmax(law).unsqueeze(1)], 1)
    return Draft.chain(tokens, Law.ONE_HOT, valid=_valid(offered, tokens, width)), torch.ones(1, dtype=torch.float64)


def supports_of(q: Tables, random: torch.Generator) -> Tables:
    """The V - 1 likeliest tokens of each row of q, in random order."""
    ids = [table.topk(table.shape[1] - 1).indices for table in q]
    return [table.gather(1, torch.rand(table.shape, generator=random).argsort(1)) for table in ids]


def along(tables: Tables, tokens: Tensor, width: int) -> Tensor:
    """[B, len(tables), ...]: the entries that chains of tokens [B, N] meet, the one of the empty prefix first."""
    prefix = torch.zeros(len(tokens), dtype=torch.int64)
    entries = []
    for depth, table in enumerate(tables):
        entries.append(table[prefix])
        if depth < tokens.shape[1]:
            prefix = prefix * width + tokens[:, depth]
    return torch.stack(entries, 1)


def joint_law(tables: Tables) -> Tensor:
    """[V ** len(tables)]: the law of that many tokens drawn one after another."""
    law = torch.ones(1, dtype=torch.float64)
    for table in tables:
        law = (law.unsqueeze(1) * table.double()).flatten()
    return law


def output_law(
    verifier: Verifier, logits: Tables, draft: Draft, weights: Tensor, sampling: Sampling | None = None
) -> Tensor:
    """[V ** (gamma + 1)]: law of the first gamma + 1 tokens that come out of one round and go on with the target.

    Args:
        verifier: the rule whose laws are summed.
        logits: the target's gamma + 1 tables [V ** i, V].
        draft: chains, each row one that may be proposed.
        weights: [B] float64 probability of each row.
        sampling: makes p from the logits; None is temperature 1.
    """
    sampling, width = sampling or Sampling(), logits[0].shape[1]
    target = TargetRows(along(logits, draft.tokens, width), draft, sampling)
    stop_law = verifier.stop_law(target, draft)
    emitted = torch.zeros(1, dtype=torch.float64)
    prefix = torch.zeros(len(weights), dtype=torch.int64)
    for stop, table in enumerate(logits):
        # What ended earlier goes on with the target's own law; what ends here is added to it.
        emitted = (emitted.unsqueeze(1) * sampling.probs(table).double()).flatten()
        replacement = verifier.replacement(target, draft, torch.full((len(weights),), stop))
        ending = (weights * stop_law[:, stop].double()).unsqueeze(1) * replacement.double()
        emitted.view(-1, width).index_add_(0, prefix, ending)
        if stop < draft.num_nodes:
            prefix = prefix * width + draft.tokens[:, stop]
    return emitted


def total_variation(left: Tensor, right: Tensor) -> float:
    """Half the summed difference of two laws."""
    return (left - right).abs().sum().item() / 2


def _valid(offered: Tables | None, tokens: Tensor, width: int) -> Tensor | None:
    return None if offered is None else along(offered, tokens, width).cumprod(1).bool()


def _random_law(rows: int, width: int, random: torch.Generator) -> Tensor:
    return (2 * torch.randn(rows, width, dtype=torch.float64, generator=random)).softmax(1)


def _thinned(law: Tensor, random: torch.Generator) -> Tensor:
    """About half of the entries without mass, never all."""
    kept = (torch.rand(law.shape, generator=random) < 0.5) | (_peak(law) > 0)
    return _normalised(law * kept)


def _peak(law: Tensor) -> Tensor:
    return torch.zeros_like(law).scatter(1, argmax(law).unsqueeze(1), 1.0)


def _normalised(masses: Tensor) -> Tensor:
    return masses / masses.sum(1, keepdim=True)
