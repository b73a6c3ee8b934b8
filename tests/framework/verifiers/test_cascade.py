"""The cascade between its two ends, the drafter's own text and speculative sampling, by enumeration."""

import pytest
import torch

from experiments.measurement.divergence import emitted_distribution
from framework.conformance.enumeration import (
    chains,
    every_draft,
    joint_distribution,
    output_distribution,
    target_distribution,
    target_rows,
    total_variation,
)
from framework.conformance.toy_distributions import logits_of, random_tables
from framework.core.draft import Draft, SamplingScheme
from framework.core.sampling import Sampling
from framework.verifiers.cascade import Cascade

PLAIN, GREEDY = Sampling(), Sampling(temperature=0)


def emitted(threshold: float, seed: int, depth: int) -> tuple[torch.Tensor, list, list]:
    p, q = random_tables("random", 3, depth, torch.Generator().manual_seed(seed))
    draft, weights = every_draft(q, parent=chains(1, depth), scheme=SamplingScheme.IID)
    return output_distribution(Cascade(threshold=threshold), logits_of(p), draft, weights, PLAIN), p, q


@pytest.mark.parametrize("seed", range(3))
def test_threshold_0_is_the_drafter_and_1_speculative_sampling(seed):
    found, p, q = emitted(0.0, seed, 2)
    assert total_variation(found, joint_distribution([*q, p[-1]])) <= 1e-12
    found, p, _ = emitted(1.0, seed, 2)
    assert total_variation(found, target_distribution(logits_of(p), PLAIN)) <= 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_confident_tokens_keep_q_and_the_others_are_tested(seed):
    found, p, q = emitted(0.3, seed, 1)
    first, p, q = found.view(3, 3).sum(1), p[0][0], q[0][0]
    stands = torch.where(q >= 0.3, q, torch.minimum(p, q))
    residual = (p - q).clamp(min=0)
    expected = stands + (1 - stands.sum()) * residual / residual.sum()
    assert torch.allclose(first, expected, atol=1e-12) and (q >= 0.3).any() and (q < 0.3).any()
    assert (expected - p).abs().max() > 1e-3  # LOSSY


def test_at_temperature_0_the_last_token_alone_is_tested():
    """The target's argmax is 2 everywhere; the drafts are 0 1, and 0 alone."""
    p = [torch.tensor([[0.1, 0.2, 0.7]] * 3**i, dtype=torch.float64) for i in range(3)]
    valid = torch.tensor([[True, True], [True, False]])
    draft = Draft.chain(torch.tensor([[0, 1], [0, 1]]), SamplingScheme.ONE_HOT, valid=valid)
    target = target_rows(logits_of(p), draft, GREEDY)
    stop_probs = Cascade(threshold=0.9).stop_probs(target, draft)
    assert stop_probs.tolist() == [[0, 1, 0], [1, 0, 0]]
    assert Cascade(threshold=0.9).next_token_probs(target, draft, torch.tensor([1, 0]))[:, 2].tolist() == [1, 1]


def test_its_divergence_counts_tokens_that_stand():
    logits = torch.tensor([0.1, 0.2, 0.7]).log()
    target = target_rows([logits.expand(1, 3)], Draft.empty(1, torch.device("cpu")), GREEDY)
    rule = Cascade(threshold=0.5)
    for goes_on, expected in ((True, [0, 1, 0]), (False, [0, 0, 1])):
        assert emitted_distribution(rule, target, logits, None, 1, goes_on).tolist() == expected
    with pytest.raises(ValueError, match="threshold is 2; allowed: a number in"):
        Cascade(threshold=2)
