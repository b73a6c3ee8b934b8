"""Typical acceptance: bounds by hand, the longest path, and greedy decoding at temperature 0."""

import math

import pytest
import torch

from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.verifiers.typical import TypicalAcceptance

SPREAD, PEAKED = [0.3, 0.3, 0.2, 0.15, 0.05], [0.9, 0.06, 0.02, 0.01, 0.01]
RULE = TypicalAcceptance(epsilon=0.09, delta=0.3)


def entropy(probs: list[float]) -> float:
    return -sum(mass * math.log(mass) for mass in probs)


def judged(
    tokens: list[int], parent: list[int], distributions: list[list[float]], rule: TypicalAcceptance = RULE
) -> list[float]:
    """Stop probability of a draft of chosen tokens; a distribution per row of [pending, nodes...]."""
    draft = Draft(
        torch.tensor([tokens]),
        torch.tensor([parent]),
        torch.ones(1, len(tokens), dtype=torch.bool),
        SamplingScheme.ONE_HOT,
        shape=Shape.TREE,
    )
    rows = TargetRows(torch.tensor([distributions], dtype=torch.float64).log(), draft, Sampling())
    assert torch.allclose(rule.next_token_probs(rows, draft, torch.tensor([0])), rows.all_probs[:, 0])
    return rule.stop_probs(rows, draft)[0].tolist()


@pytest.mark.parametrize("probs", [SPREAD, PEAKED], ids=["spread", "peaked"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.5, 0.3), (0.5, 5.0), (0.015, 0.3)])
def test_a_token_is_kept_above_the_smaller_bound(probs, epsilon, delta):
    rule, bound = TypicalAcceptance(epsilon=epsilon, delta=delta), min(epsilon, delta * math.exp(-entropy(probs)))
    for token, mass in enumerate(probs):
        expected = [0.0, 1.0] if mass > bound else [1.0, 0.0]
        assert judged([token], [-1], [probs, probs], rule) == expected


def test_both_bounds_decide_somewhere():
    assert 0.3 * math.exp(-entropy(SPREAD)) < 0.09 < 0.3 * math.exp(-entropy(PEAKED))
    assert judged([3], [-1], [SPREAD] * 2) == [0, 1] and judged([1], [-1], [PEAKED] * 2) == [1, 0]


@pytest.mark.parametrize(
    ("tokens", "parent", "expected"),
    [
        ([0, 1], [-1, -1], 1),  # a tie: the first
        ([2, 1], [-1, -1], 2),  # equal lengths: the likelier
        ([0, 2, 3], [-1, -1, 1], 3),  # the longest, despite a less likely first node
        ([2, 3, 2, 0], [-1, -1, 0, 1], 4),  # .2 x .2 against .15 x .3
        ([4, 0, 0], [-1, -1, 0], 2),  # nodes after a rejected one do not count
        ([4], [-1], 0),
    ],
    ids=str,
)
def test_the_longest_path_is_kept_and_of_two_the_likelier(tokens, parent, expected):
    rule = TypicalAcceptance(epsilon=0.1, delta=1.0)
    stop_probs = judged(tokens, parent, [SPREAD] * (len(tokens) + 1), rule)
    assert stop_probs == [float(row == expected) for row in range(len(tokens) + 1)]


def test_what_is_not_offered_is_not_kept():
    draft = Draft(
        torch.tensor([[0, 0, 0]]),
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([[True, False, False]]),
        SamplingScheme.ONE_HOT,
    )
    rows = TargetRows(torch.tensor([PEAKED]).log().expand(1, 4, -1), draft, Sampling())
    assert RULE.stop_probs(rows, draft).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("drafter", ["small_transformer", "transformer_tree"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.999, 100.0)])
def test_at_temperature_0_it_gives_the_targets_greedy_tokens(drafter, epsilon, delta):
    target, greedy, stopping = tiny_target(), Sampling(temperature=0), Stopping(max_new_tokens=16)
    prompts = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
    expected = Autoregressive(target=target, sampling=greedy).generate(prompts, stopping=stopping, seeds=[0] * 3)
    engine = Engine(
        target=target,
        drafter=tiny_factory(drafter, target.vocabulary_size)(target=target),
        verifier=TypicalAcceptance(epsilon=epsilon, delta=delta),
        gamma_policy=Fixed(gamma=3),
        sampling=greedy,
    )
    assert engine.generate(prompts, stopping=stopping, seeds=[0] * 3).tokens == expected.tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, r"^epsilon is 0; .*\(0, 1\)"),
        ({"epsilon": 1.0}, r"^epsilon is 1\.0"),
        ({"epsilon": True}, r"^epsilon is True"),
        ({"delta": 0.0}, r"^delta is 0\.0; .*> 0"),
        ({"delta": "large"}, r"^delta is 'large'"),
        ({"delta": float("nan")}, r"^delta is nan"),
    ],
    ids=str,
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        TypicalAcceptance(**{"epsilon": 0.09, "delta": 0.3, **options})
