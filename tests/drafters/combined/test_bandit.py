"""Bandit over drafters: every arm follows the text in other arms' rounds, rewards, and the target's distribution."""

import pytest
import torch
from omegaconf import OmegaConf

from drafters.combined.bandit import DrafterBandit
from drafters.hierarchical import Hierarchical
from drafters.ngram import NGram
from drafters.prompt_lookup import PromptLookup
from drafters.small_transformer import SmallTransformer
from experiments.proof.tiny_drafters import drafter_node, tiny_factory, tiny_factory_of
from framework.conformance import check_drafter
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import NARROW, tiny_model, tiny_target
from framework.core.bandits import UpperConfidence
from framework.core.drafter import preserve_learned_state
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.models.cached_lm import CachedLM

PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
GREEDY = Sampling(temperature=0)


class InTurn:
    """Plays one arm after the other, and notes the rewards."""

    def __init__(self, ranges):
        self.number, self.played, self.rewards = len(ranges), -1, []

    def choose(self):
        self.played += 1
        return self.played % self.number

    def observe(self, arm, reward):
        assert arm == self.played % self.number
        self.rewards.append((arm, reward))


def copy_of_target(target):
    return CachedLM(target.model.model, vocabulary_size=target.vocabulary_size)


def other_model(target):
    return CachedLM(tiny_model(vocabulary=target.vocabulary_size, seed=3), vocabulary_size=target.vocabulary_size)


def small(model):
    return lambda target: SmallTransformer(target, model=model)


def lookup(target):
    return PromptLookup(target, max_ngram=3, min_ngram=1, match="last", from_source=True)


def ngram(target):
    return NGram(target, order=3, smoothing="witten_bell", learn_from_context=True, corpus=None)


def hierarchical(target):
    return Hierarchical(target, model=copy_of_target, drafter=small(other_model), gamma=2)


def bandit(target, drafters, *, algorithm=InTurn, costs=None, interval=1):
    return DrafterBandit(target, drafters=drafters, algorithm=algorithm, costs=costs or {}, interval=interval)


def engine(target, drafter, sampling=GREEDY):
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling)


def test_a_drafter_keeps_up_with_the_rounds_of_others():
    """The target's own model is always accepted, if it has read the text; the other drafters mostly are not."""
    target = tiny_target(context=128)
    drafters = {"own": small(copy_of_target), "lookup": lookup, "levels": hierarchical, "other": small(other_model)}
    drafter, kept = bandit(target, drafters), {0: set(), 1: set(), 2: set(), 3: set()}
    stopping, seeds = Stopping(max_new_tokens=60), [0, 1, 2]

    def note(outcome):
        active = outcome.active & (outcome.num_accepted < 3)
        kept[drafter._algorithm.played % 4].add(bool((outcome.draft.num_nodes == 3) & active.any()))

    got = engine(target, drafter).generate(PROMPTS, stopping=stopping, seeds=seeds, on_round=note).tokens
    assert (
        got == Autoregressive(target=target, sampling=GREEDY).generate(PROMPTS, stopping=stopping, seeds=seeds).tokens
    )
    assert kept[0] == kept[2] == {False}
    assert True in kept[3]


@pytest.mark.slow
def test_the_output_has_the_targets_distribution():
    target = tiny_target(vocabulary=5, **NARROW)
    own = bandit(target, {"small": small(other_model), "lookup": lookup, "ngram": ngram})
    prompt, found = [1, 2, 1, 2, 1], []
    probs = continuation_distribution(target, prompt, 5, Sampling())
    decoder, stopping = engine(target, own, Sampling()), Stopping(max_new_tokens=5)
    for seeds in torch.arange(2000).split(400):
        found += decoder.generate([prompt] * 400, stopping=stopping, seeds=seeds.tolist()).tokens
    assert {arm for arm, _ in own._algorithm.rewards} == {0, 1, 2}
    assert probs.fit(found).p_value > 1e-6


def test_rewards_are_tokens_over_time():
    target = tiny_target(context=128)
    drafter = bandit(target, {"own": small(copy_of_target), "lookup": lookup}, costs={"own": 0.5})
    accepted = []
    engine(target, drafter).generate(
        PROMPTS[:1],
        stopping=Stopping(max_new_tokens=17),
        seeds=[0],
        on_round=lambda outcome: accepted.append((outcome.draft.num_nodes, int(outcome.num_accepted))),
    )
    costs = {0: 0.5, 1: 0}
    rewards = drafter._algorithm.rewards
    assert len(rewards) >= 4
    # The last round may draft nothing; the round before it drafts less, and counts as one of gamma 3.
    for (arm, reward), (depth, kept) in zip(rewards, accepted, strict=False):
        assert reward == pytest.approx((1 + kept) / (1 + costs[arm] * depth) / 4)


def test_a_choice_can_hold_for_a_prompt():
    target = tiny_target(context=128)
    drafter = bandit(target, {"own": small(copy_of_target), "lookup": lookup}, interval=None)
    for number in range(3):
        assert drafter._algorithm.played == max(0, number - 1)
        engine(target, drafter).generate(PROMPTS[:1], stopping=Stopping(max_new_tokens=17), seeds=[number])
        assert [arm for arm, _ in drafter._algorithm.rewards] == [0, 1][:number]


@pytest.mark.parametrize(("cost", "arm"), [(0.0, 0), (5.0, 1)])
def test_the_faster_drafter_is_chosen(cost, arm):
    target = tiny_target(context=512)
    drafters = {"own": small(copy_of_target), "lookup": lookup}
    drafter = bandit(target, drafters, algorithm=lambda ranges: UpperConfidence(ranges, exploration=0.2))
    drafter._costs[0] = cost
    stopping = Stopping(max_new_tokens=200)
    with preserve_learned_state(drafter):
        engine(target, drafter).generate([[9]], stopping=stopping, seeds=[0])
        plays = drafter._algorithm.plays
    assert plays[arm] > 3 * plays[1 - arm] > 0
    assert drafter._algorithm.plays == [0, 0]


def test_drafters_that_cannot_take_turns_are_refused():
    target = tiny_target(vocabulary=50)
    with pytest.raises(ValueError, match=r"^drafters is .*TREE.*; allowed: drafters of chains, or of trees with one"):
        bandit(target, {"tree": tiny_factory("medusa", 50), "lookup": lookup})
    with pytest.raises(ValueError, match=r"^costs is 'ngram'; allowed: names of drafters: lookup"):
        bandit(target, {"lookup": lookup}, costs={"ngram": 1})
    with pytest.raises(ValueError, match=r"^drafters is \{\}; allowed: at least one"):
        bandit(target, {})
    with pytest.raises(ValueError, match=r"^algorithm\.exploration is -1; allowed: a number >= 0"):
        bandit(target, {"lookup": lookup}, algorithm=lambda ranges: UpperConfidence(ranges, exploration=-1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arms",
    [
        ["eagle3", "layer_skip", "hierarchical", "other_tokenizer", "remote"],
        ["online_small_transformer", "suffix_lookup", "ngram"],
        ["medusa", "dart"],  # trees of chosen tokens
    ],
)
def test_other_drafters_and_exp3_keep_the_contract(arms):
    node = drafter_node("online_bandit")
    del node.drafters.small_transformer, node.drafters.prompt_lookup
    node.costs = {}
    node.algorithm = {"_target_": "framework.core.bandits.Exp3", "_partial_": True, "seed": 0}
    for arm in arms:
        OmegaConf.update(node, f"drafters.{arm}", drafter_node(arm))
    target = tiny_target(vocabulary=5, **NARROW)
    torch.manual_seed(0)
    check_drafter(tiny_factory_of(node, 5), target=target, samples=3000).require()
