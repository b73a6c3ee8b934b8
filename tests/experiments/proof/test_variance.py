"""Speculation leaves the variance of outputs unchanged; a lossy rule does not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from experiments.config.builders import rules
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.goodness_of_fit import ContinuationDistribution, continuation_distribution
from framework.conformance.tiny_models import NARROW, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.target import Target

pytestmark = pytest.mark.usefixtures("narrow_buffers")

PROMPT, VOCABULARY, GAMMA, LENGTH, SAMPLES, ROWS = [1, 2, 1, 1, 2], 3, 3, 5, 10_000, 5_000
MOST_DEVIATES = 6  # false-alarm rate 2e-9 each, with fixed seeds
VALUES: dict[str, Callable[[Tensor], Tensor]] = {
    "occurrences of a token": lambda tokens: (tokens == 2).sum(1),
    "distinct tokens": lambda tokens: torch.stack([(tokens == token).any(1) for token in range(VOCABULARY)]).sum(0),
}


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(vocabulary=VOCABULARY, **NARROW)


@pytest.fixture(scope="module")
def exact(target: Target) -> ContinuationDistribution:
    return continuation_distribution(target, PROMPT, LENGTH, Sampling())


def sampled(target: Target, rule: str | None) -> list[list[int]]:
    """Continuations by plain decoding, or by rounds of a small transformer with a rule."""
    decoder: Autoregressive | Engine = Autoregressive(target=target, sampling=Sampling())
    if rule is not None:
        drafter = tiny_factory("small_transformer", VOCABULARY)(target=target)
        verifier = rules()[rule]
        policy = Fixed(gamma=GAMMA)
        decoder = Engine(target=target, drafter=drafter, verifier=verifier, gamma_policy=policy, sampling=Sampling())
    stopping, tokens = Stopping(max_new_tokens=LENGTH), []
    for first in range(0, SAMPLES, ROWS):
        seeds = list(range(first, first + ROWS))
        tokens += decoder.generate([PROMPT] * ROWS, stopping=stopping, seeds=seeds).tokens
    return tokens


def deviates(exact: ContinuationDistribution, tokens: list[list[int]]) -> list[float]:
    return [exact.variance_deviate(tokens, value) for value in VALUES.values()]


@pytest.mark.slow
@pytest.mark.parametrize("rule", [None, "speculative_sampling"])
def test_the_variance_of_outputs_is_that_of_the_target(
    rule: str | None, target: Target, exact: ContinuationDistribution
) -> None:
    assert max(map(abs, deviates(exact, sampled(target, rule)))) < MOST_DEVIATES


@pytest.mark.slow
def test_a_lossy_rule_changes_the_variance(target: Target, exact: ContinuationDistribution) -> None:
    assert max(map(abs, deviates(exact, sampled(target, "lenience")))) > MOST_DEVIATES


def test_deviates_of_honest_samples_are_normal(exact: ContinuationDistribution) -> None:
    """200 samples of 2,000: mean and variance within four standard deviations of a normal's, 0 and 1."""
    dice = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        drawn = exact.tokens[torch.multinomial(exact.probs, 2_000, replacement=True, generator=dice)]
        found.append(exact.variance_deviate(drawn.tolist(), VALUES["occurrences of a token"]))
    found = torch.tensor(found)
    assert abs(found.mean()) < 4 / 200**0.5 and abs(found.var() - 1) < 4 * (2 / 200) ** 0.5
