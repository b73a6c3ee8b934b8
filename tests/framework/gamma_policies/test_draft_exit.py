"""Draft exit's published update rule against hand-computed numbers, row by row, and through the engine."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from drafters.layer_skip import LayerSkip
from experiments.config.builders import build
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Readout
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.draft_exit import DraftExit
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.rounds import drafted, readout

CONF = Path(__file__).parents[3] / "conf" / "gamma" / "draft_exit.yaml"
PUBLISHED = {"max_gamma": 8, "threshold": 0.8, "alpha_target": 0.9, "b1": 0.5, "b2": 0.9, "eps": 0.01}
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]


def draft_exit(**options: object) -> DraftExit:
    return DraftExit(**(PUBLISHED | options))


def after(policy: DraftExit, *rounds: Readout) -> tuple[list[float], list[float]]:
    """Acceptance and threshold of every row after these rounds."""
    for seen in rounds:
        policy.observe(seen)
    return policy.acceptance, policy.threshold


# The rule


def test_the_rule_by_hand() -> None:
    """With b1 = 1/2, b2 = .9, eps = .01, a move is .001: three up, two down, held, up."""
    policy = draft_exit()
    rounds = [(4, 4), (4, 4), (4, 4), (5, 5), (5, 5), (8, 8), (2, 0)]
    #         .5      .75     .875    .9375   .96875  .984   .492
    moves = [0.001, 0.001, 0.001, -0.001, -0.001, 0.0, 0.001]
    acceptances = [0.5, 0.75, 0.875, 0.9375, 0.96875, 0.984375, 0.4921875]
    threshold = 0.8
    for seen, move, acceptance in zip(rounds, moves, acceptances, strict=True):
        threshold += move
        got_acceptance, got_threshold = after(policy, readout(seen))
        assert got_acceptance == [acceptance]
        assert got_threshold == pytest.approx([threshold], abs=1e-12)


def test_the_target_itself_counts_as_reached() -> None:
    """Acceptance equal to alpha_target counts as reached."""
    assert after(draft_exit(alpha_target=0.5), readout((4, 4)))[1] == pytest.approx([0.799])


def test_damping_and_step_are_options() -> None:
    acceptance, threshold = after(draft_exit(b1=0.8, b2=0.5, eps=0.1), readout((4, 2)))
    assert acceptance == pytest.approx([0.1]) and threshold == pytest.approx([0.85])


def test_a_full_draft_that_was_lost_still_raises_the_threshold() -> None:
    """Max_gamma holds only rows whose acceptance has reached the target."""
    assert after(draft_exit(), readout((8, 0)))[1] == pytest.approx([0.801])


def test_rows_adapt_for_themselves() -> None:
    """A row alone, and among rows that are finished or have nothing to verify."""
    mine = [(4, 4), (3, 1), (8, 8), (2, 2), (1, 1)]
    others = [[(1, 0), (8, 8, False), (0, 0)], [(4, 4), (2, 1, False), (0, 0)]]
    alone, among = draft_exit(), draft_exit()
    for number, seen in enumerate(mine):
        alone.observe(readout(seen))
        among.observe(readout(*others[number % 2], seen))
    assert among.threshold[3] == alone.threshold[0] and among.acceptance[3] == alone.acceptance[0]
    assert among.threshold[1] == among.threshold[2] == 0.8 and among.acceptance[1] == 0


def test_a_round_without_nodes_changes_nothing() -> None:
    policy = draft_exit()
    policy.observe(readout((0, 0), (0, 0)))
    assert policy.threshold == [0.8, 0.8]


def test_a_generation_begins_anew() -> None:
    policy = draft_exit()
    after(policy, *[readout((4, 1), (4, 4))] * 5)
    policy.begin()
    assert policy.threshold == policy.acceptance == []
    assert policy.should_continue(drafted(0.79, 0.8, 0.81)).tolist() == [False, True, True]


WRONG = [
    ("max_gamma", 0, "a whole number from 1"),
    ("threshold", 1.2, r"a number in \[0, 1\]"),
    ("alpha_target", -0.1, r"a number in \[0, 1\]"),
    ("b1", 1, r"a number in \[0, 1\)"),
    ("b2", "most", r"a number in \[0, 1\)"),
    ("eps", -1, r"a number in \[0, 1\]"),
]


@pytest.mark.parametrize(("option", "value", "allowed"), WRONG)
def test_a_wrong_option_is_named(option: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"^{option} is {value!r}; allowed: {allowed}"):
        draft_exit(**{option: value})


def test_the_yaml_holds_the_published_settings() -> None:
    policy = build(OmegaConf.load(CONF))
    published = {"max_gamma": 8, "initial": 0.5, "alpha_target": 0.9, "b1": 0.5, "b2": 0.9, "eps": 0.01}
    assert {option: getattr(policy, option) for option in published} == published


# Through the engine


def engine(policy: DraftExit, sampling: Sampling, *, vocabulary: int = 50) -> Engine:
    target = tiny_target(vocabulary=vocabulary)
    drafter = LayerSkip(target, layers=None, skip_attention=[1], skip_mlp=[], exit_after=None)
    return Engine(
        target=target, drafter=drafter, verifier=SpeculativeSampling(), gamma_policy=policy, sampling=sampling
    )


LIVELY = {"max_gamma": 4, "threshold": 0.3, "alpha_target": 0.6, "b2": 0.0, "eps": 0.1}


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_rows_tokens_do_not_depend_on_its_batch(temperature: float) -> None:
    decoder, stopping = engine(draft_exit(**LIVELY), Sampling(temperature=temperature)), Stopping(30, eos_ids=(0,))
    together = decoder.generate(RAGGED, stopping=stopping, seeds=list(range(8)))
    if temperature == 0:
        plain = Autoregressive(target=decoder.target, sampling=decoder.sampling)
        assert together.tokens == plain.generate(RAGGED, stopping=stopping, seeds=list(range(8))).tokens
    for row, prompt in enumerate(RAGGED):
        assert decoder.generate([prompt], stopping=stopping, seeds=[row]).tokens[0] == together.tokens[row]


@pytest.mark.slow
def test_the_output_follows_the_targets_distribution_while_thresholds_move() -> None:
    """Chi-square over all continuations of 5 tokens; false-alarm rate 1e-7, fixed seeds."""
    policy = draft_exit(**LIVELY)
    decoder, prompt, samples = engine(policy, Sampling(), vocabulary=3), [1, 2, 1, 0, 2], 8000
    generation = decoder.generate([prompt] * samples, stopping=Stopping(5), seeds=list(range(samples)))
    assert len(set(policy.threshold)) > 2 and (generation.tally.accepted.sum(1) > 0).sum() > 2
    fit = continuation_distribution(decoder.target, prompt, 5, Sampling()).fit(generation.tokens)
    assert fit.p_value > 1e-7, f"total variation {fit.total_variation:.3f}"
