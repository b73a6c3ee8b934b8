"""Expected latency of hierarchies of models, and the best one (Globerson et al., 2025, 2510.19705).

In a hierarchy each model verifies drafts of the next smaller one, and its verified tokens are the draft for the next
larger one; the largest is the target. As in `theory`, acceptance is independent and equally likely at every position,
and a pass over a draft takes as long as one over a single token. Models are numbered from the smallest to the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import inf

from framework.core.validation import check_whole
from framework.metrics.theory import ROUNDING, expected_tokens


@dataclass(frozen=True)
class Hierarchy:
    """Models of a hierarchy, its block lengths and its expected latency.

    Attributes:
        models: numbers of its models, ascending; the last one is the target.
        gammas: drafted tokens per pass of every model but the smallest.
        latency: expected time per token, in the unit of the costs.
    """

    models: tuple[int, ...]
    gammas: tuple[int, ...]
    latency: float


def latency(costs: Sequence[float], alphas: Sequence[float], gammas: Sequence[int]) -> float:
    """Expected time per token of a hierarchy.

    The smallest model takes c_0 per token, and model i, after gamma_i tokens of the model below, takes
    L_i = (gamma_i L_(i - 1) + c_i) / (1 + alpha_i + ... + alpha_i ** gamma_i).

    Args:
        costs: time of one pass of every model, smallest model first, > 0.
        alphas: acceptance rate of every model but the smallest for tokens of the model below, in [0, 1].
        gammas: drafted tokens per pass of the same models, >= 1.
    """
    _check(costs, alphas, gammas)
    found = costs[0]
    for cost, alpha, gamma in zip(costs[1:], alphas, gammas, strict=True):
        found = (gamma * found + cost) / expected_tokens(alpha, gamma)
    return found


def drafter_latency(costs: Sequence[float], alphas: Sequence[float], gammas: Sequence[int]) -> float:
    """As `latency`, for the drafter `Hierarchical`, which drafts exactly gamma tokens.

    A model commits gamma + 1 tokens for a draft of gamma, since it has not read the last one, and its last round
    drafts no more than can be kept.
    """
    _check(costs, alphas, gammas)

    @cache
    def draft_time(level: int, tokens: int) -> float:
        return tokens * costs[0] if level == 0 else commit_time(level, tokens + 1)

    @cache
    def commit_time(level: int, tokens: int) -> float:
        """Expected time until model `level` has committed so many tokens."""
        if tokens <= 0:
            return 0.0
        alpha, depth = alphas[level - 1], max(1, min(gammas[level - 1], tokens - 1))
        found = draft_time(level - 1, depth) + costs[level]
        for accepted in range(depth + 1):
            chance = alpha**accepted * (1 - alpha if accepted < depth else 1)
            found += chance * commit_time(level, tokens - accepted - 1)
        return found

    if len(costs) == 1:
        return costs[0]
    return (draft_time(len(costs) - 2, gammas[-1]) + costs[-1]) / expected_tokens(alphas[-1], gammas[-1])


def best_hierarchy(
    costs: Sequence[float], alphas: Sequence[Sequence[float]], *, max_gamma: int, most_models: int | None = None
) -> Hierarchy:
    """The hierarchy of least latency among all subsets of models that end with the target, and all block lengths.

    An edge from model j to model i with gamma tokens turns the latency L_j into (gamma L_j + c_i) / E(alpha_ij, gamma),
    which increases with L_j. The best hierarchy is therefore a shortest path with gains, found model by model in
    O(models^2 max_gamma most_models) steps.

    Args:
        costs: time of one pass of every model, smallest model first, > 0.
        alphas: for every model, its acceptance rates for tokens of every smaller model.
        max_gamma: longest block, >= 1.
        most_models: largest number of models; None: all. 1 is plain decoding, and 2 speculative decoding.
    """
    check_whole("max_gamma", max_gamma, least=1)
    check_whole("most_models", most_models, least=1, or_null=True)
    number = len(costs)
    _check(costs, [alphas[upper][lower] for upper in range(number) for lower in range(upper)], ())
    alone = [Hierarchy((model,), (), float(costs[model])) for model in range(number)]
    best = list(alone)  # by largest model, of at most `size` models
    for _ in range(1, number if most_models is None else most_models):
        best = [
            _least(
                [alone[upper]]
                + [
                    _above(best[lower], upper, costs[upper], alphas[upper][lower], gamma)
                    for lower in range(upper)
                    for gamma in range(1, max_gamma + 1)
                ]
            )
            for upper in range(number)
        ]
    return best[-1]


def _above(lower: Hierarchy, model: int, cost: float, alpha: float, gamma: int) -> Hierarchy:
    """The hierarchy with one more model on top."""
    found = (gamma * lower.latency + cost) / expected_tokens(alpha, gamma)
    return Hierarchy((*lower.models, model), (*lower.gammas, gamma), found)


def _least(found: list[Hierarchy]) -> Hierarchy:
    """The one of least latency, with fewer models and shorter blocks on ties."""
    least = min(each.latency for each in found)
    return min(
        (each for each in found if each.latency <= least * (1 + ROUNDING)),
        key=lambda each: (len(each.models), each.gammas),
    )


def _check(costs: Sequence[float], alphas: Sequence[float], gammas: Sequence[int]) -> None:
    if not costs or not all(0 < cost < inf for cost in costs) or any(a > b for a, b in pairwise(costs)):
        raise ValueError(f"costs are {list(costs)}; allowed: numbers > 0, the cheapest model first")
    if not all(0 <= alpha <= 1 for alpha in alphas):
        raise ValueError(f"alphas are {list(alphas)}; allowed: numbers in [0, 1]")
    for gamma in gammas:
        check_whole("gamma", gamma, least=1)
