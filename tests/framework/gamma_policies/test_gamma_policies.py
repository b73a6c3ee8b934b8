"""Every gamma policy's update rule against hand-computed sequences, and the contract of all policies."""

import math
import random
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from drafters.prompt_lookup import PromptLookup
from experiments.config.builders import build
from experiments.config.resolvers import register_resolvers
from framework.conformance.tiny_models import tiny_target
from framework.core.draft import Draft, DraftedNode, Readout, SamplingScheme
from framework.core.drafter import is_stepwise
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.bandit import Bandit
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.entropy_bound import EntropyBound
from framework.gamma_policies.exp3 import Exp3
from framework.gamma_policies.expected_speedup import ExpectedSpeedup
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.gamma_policies.heuristic import Heuristic
from framework.gamma_policies.round_profile import give_costs
from framework.gamma_policies.stop_head import StopHead
from framework.heads.acceptance_head import AcceptanceHead, save_head
from framework.metrics import theory
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.rounds import drafted, readout

register_resolvers()  # one yaml refers to an embedded head
FOLDER = Path(__file__).parents[3] / "conf" / "gamma"
POLICIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def policy_of(name: str, **options: object) -> GammaPolicy:
    """Build a policy from its yaml, with changed options and, if used, fixed costs."""
    policy = build(OmegaConf.merge(OmegaConf.load(FOLDER / f"{name}.yaml"), options))
    give_costs(policy, Costs(c=0.1, target_times=tuple(1 + 0.05 * rows for rows in range(policy.max_gamma + 1))))
    return policy


def gammas(policy: GammaPolicy, *rounds: Readout) -> list[int]:
    """Gamma before each round and after the last."""
    policy.begin()
    asked = [policy.next_gamma()]
    for seen in rounds:
        policy.observe(seen)
        asked.append(policy.next_gamma())
    return asked


# Heuristic


def test_additive_adds_two_after_full_acceptance_and_takes_one_after_any_other() -> None:
    policy = Heuristic(initial=2, max_gamma=6)
    rounds = [(2, 2), (4, 4), (6, 5), (5, 0), (4, 3), (3, 3), (5, 5)]
    assert gammas(policy, *map(readout, rounds)) == [2, 4, 6, 5, 4, 3, 5, 6]


def test_additive_never_falls_below_one() -> None:
    assert gammas(Heuristic(initial=2, max_gamma=4), *[readout((1, 0))] * 3, readout((1, 1))) == [2, 1, 1, 1, 3]


def test_additive_counts_what_was_offered_by_rows_that_took_part() -> None:
    """A whole short draft is a full acceptance; finished rows and empty drafts are ignored."""
    policy = Heuristic(initial=3, max_gamma=9)
    rounds = [
        readout((1, 1)),
        readout((0, 0)),
        readout((5, 5), (2, 1)),
        readout((4, 4), (4, 0, False)),
        readout((3, 3, False), (0, 0)),
        readout((0, 0), (6, 6)),
    ]
    assert gammas(policy, *rounds) == [3, 5, 5, 4, 6, 6, 8]


# Expected speedup


def best(**options: object) -> ExpectedSpeedup:
    settings = {
        "max_gamma": 20,
        "c": 0.05,
        "prior_accepted": 2,
        "prior_rejected": 1,
        "forgetting": 0.5,
        "probe_every": None,
    }
    return ExpectedSpeedup(**(settings | options))


def test_alpha_is_a_fading_ratio_over_tested_nodes() -> None:
    policy = best()
    assert policy.alpha == 2 / 3
    policy.observe(readout((3, 3)))
    assert policy.alpha == (2 + 3) / (3 + 3)
    policy.observe(readout((4, 1)))  # 2 tested nodes
    assert policy.alpha == (2 + 2.5) / (3 + 3.5)
    policy.observe(readout((0, 0)))
    assert policy.alpha == (2 + 2.5) / (3 + 3.5)  # an empty draft changes nothing
    policy.observe(readout((2, 2), (4, 2), (4, 4, False), (0, 0)))  # 2 and 3 tested nodes
    assert policy.alpha == (2 + 1.25 + 4) / (3 + 1.75 + 5)
    policy.begin()
    assert policy.alpha == 2 / 3
    policy.observe(readout((4, 2), (3, 1), (2, 0)))  # every row tests one node more than it accepts
    assert policy.alpha == (2 + 3) / (3 + 6)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma"),
    [  # maxima of Theorem 3.8
        (0.5, 0.01, 5), (0.6, 0.02, 6), (0.7, 0.05, 6), (0.8, 0.1, 6), (0.9, 0.2, 7), (0.9, 0.05, 13), (0.1, 0.1, 0),
    ],
)  # fmt: skip
def test_gamma_is_the_optimum_of_theorem_3_8(alpha: float, c: float, gamma: int) -> None:
    policy = best(c=c, prior_accepted=1e9 * alpha, prior_rejected=1e9 * (1 - alpha))
    assert policy.next_gamma() == gamma
    policy.use_costs(Costs(c=9.0, target_times=(1.0,) * 21))
    assert policy.next_gamma() == gamma  # a given c overrides the measured one


def test_measured_passes_of_the_target_count() -> None:
    """Five rows cost as much as one, six twice as much: gamma is 4 for alpha >= .7."""
    times = (1.0,) * 5 + (2.0,) * 8
    for alpha in (0.7, 0.8, 0.9):
        policy = best(c=None, max_gamma=12, prior_accepted=alpha, prior_rejected=1 - alpha)
        policy.use_costs(Costs(c=0.01, target_times=times))
        speeds = [theory.expected_tokens(alpha, gamma) / (0.01 * gamma + times[gamma]) for gamma in range(13)]
        assert policy.next_gamma() == speeds.index(max(speeds)) == 4


def test_gamma_follows_alpha_down_and_up() -> None:
    rounds = [readout((5, 0))] * 6 + [readout((5, 5))] * 6
    asked = gammas(best(c=0.5), *rounds)
    # alpha: 2/3, then .4 after 6 rejections of total weight 2, then .92 as these fade and 10 acceptances remain.
    assert (asked[0], asked[6], asked[-1]) == (1, 0, 4)
    assert asked[:7] == sorted(asked[:7], reverse=True) and asked[6:] == sorted(asked[6:])


def test_it_probes_where_drafting_does_not_pay() -> None:
    """At c = 2 no draft pays: one node every `probe_every` rounds, or none without probing."""
    for probe_every, expected in ((3, [0, 0, 1, 0, 0, 1, 0]), (1, [1] * 7), (None, [0] * 7)):
        policy = best(c=2, probe_every=probe_every)
        asked = []
        for _ in range(7):
            asked.append(policy.next_gamma())
            policy.observe(readout((asked[-1], asked[-1])))
        assert asked == expected


def test_a_probe_for_which_nothing_was_found_is_tried_again() -> None:
    assert gammas(best(c=2, probe_every=2), *[readout((0, 0))] * 3, readout((1, 1))) == [0, 1, 1, 1, 0]


def test_without_costs_it_says_which_key_to_set() -> None:
    with pytest.raises(ValueError, match=r"gamma\.c is None, .*; allowed: a number >= 0"):
        best(c=None).next_gamma()


# Confidence threshold


def test_a_row_goes_on_from_the_threshold_upwards() -> None:
    policy = ConfidenceThreshold(max_gamma=7, threshold=0.5)
    assert policy.should_continue(drafted(0.49, 0.5, 0.51)).tolist() == [False, True, True]
    assert gammas(policy, readout((7, 0)), readout((7, 7))) == [7, 7, 7]
    assert ConfidenceThreshold(max_gamma=7, threshold=0).should_continue(drafted(0.0)).all()


# Entropy bound


def test_it_stops_where_the_entropy_bound_says() -> None:
    """Factor .2 and threshold .4 bound H by (1 - .4)^2 / .2 = 1.8 nats; six equal tokens have 1.79."""
    policy = entropy_bound(threshold=0.4)
    distributions = torch.zeros(3, 8)
    for row, number in enumerate((1, 6, 7)):
        distributions[row, :number] = 1 / number
    # The distribution alone decides, not the drawn token.
    for entry in (torch.zeros(3, dtype=torch.int64), torch.tensor([0, 5, 6])):
        assert policy.should_continue(DraftedNode(distributions, entry, depth=1)).tolist() == [True, True, False]
    assert entropy_bound(threshold=0.2).should_continue(DraftedNode(distributions, entry, 1)).all()


def test_its_threshold_moves_with_acceptance_if_asked_to() -> None:
    """One row always, one never fully accepted: with b2 = .9 and eps = .5 a move is .05; a constant one stays."""
    moving, constant = entropy_bound(alpha_target=0.9, eps=0.5), entropy_bound(alpha_target=None, eps=0.5)
    for policy in (moving, constant):
        for _ in range(8):
            policy.observe(readout((3, 3), (3, 1)))
    # Acceptance of the first row is 1 - 2^-n: below .9 for three rounds, then reached.
    assert moving.threshold == pytest.approx([0.5 + 3 * 0.05 - 5 * 0.05, 0.5 + 8 * 0.05])
    six_tokens = torch.full((2, 6), 1 / 6)  # a bound of 0.40
    node = DraftedNode(six_tokens, torch.tensor([0, 0]), depth=1)
    assert moving.should_continue(node).tolist() == [True, False]
    assert constant.should_continue(node).tolist() == [False, False] and constant.threshold == []
    moving.begin_rows([1])
    assert moving.threshold[1] == 0.5
    moving.begin()
    assert moving.should_continue(node).tolist() == [False, False]


# Stop head


@pytest.fixture
def constant_head(tmp_path: Path) -> Path:
    """A head that gives every token 0.8."""
    head = AcceptanceHead(width=2, num_blocks=1)
    for parameter in head.parameters():
        parameter.data.zero_()
    head.last.bias.data.fill_(math.log(4))
    save_head(tmp_path, head, {})
    return tmp_path


def test_the_head_stops_once_the_product_of_its_chances_is_too_small(constant_head: Path) -> None:
    """0.8, 0.64, 0.512: at threshold 0.6 every draft ends after its third node."""
    policy = StopHead(max_gamma=8, path=str(constant_head), threshold=0.6)
    for _ in range(2):
        answers = [policy.should_continue(drafted(0.5, 0.1, depth=depth)).tolist() for depth in (1, 2, 3)]
        assert answers == [[True, True], [True, True], [False, False]]


def test_a_head_that_is_not_there_is_named(constant_head: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^path is 'nowhere'.*training=stop_head"):
        StopHead(max_gamma=8, path="nowhere", threshold=0.5)
    (constant_head / "head.safetensors").write_bytes(b"damaged")
    with pytest.raises(OSError, match=r"^path is .*holds no whole head"):
        StopHead(max_gamma=8, path=str(constant_head), threshold=0.5)


# Bandit


def entropy_bound(**options: object) -> EntropyBound:
    given = {"max_gamma": 5, "factor": 0.2, "threshold": 0.5, "alpha_target": None, "b1": 0.5, "b2": 0.9, "eps": 0.01}
    return EntropyBound(**(given | options))


def bandit(**options: object) -> Bandit:
    return Bandit(**({"gammas": [1, 4, 2], "c": 0.1, "exploration": 0.0} | options))


def test_every_arm_is_played_once_and_then_the_fastest() -> None:
    """Tokens per time: 2 / 1.1 = 1.82, 5 / 1.4 = 3.57, 1 / 1.2 = .83.

    Then 4 falls to (5 + 1) / 2 / 1.4 = 2.14, and to (5 + 1 + 1) / 3 / 1.4 = 1.67.
    """
    rounds = [(1, 1), (4, 4), (2, 0), (4, 0), (4, 0)]
    assert gammas(bandit(), *map(readout, rounds)) == [1, 4, 2, 4, 4, 1]


def test_what_is_known_little_of_is_played_again() -> None:
    """Confidence width after one play in n rounds: gamma * sqrt(2 ln n) / time, largest for 4."""
    rounds = [readout((1, 1)), readout((4, 0)), readout((2, 1))]
    assert gammas(bandit(), *rounds)[-1] == 1 and gammas(bandit(exploration=1.0), *rounds)[-1] == 4


@pytest.mark.parametrize("exploration", [0.5, 1.0])
def test_the_arm_is_the_one_of_the_largest_bound_written_out(exploration: float) -> None:
    """Bound of an arm after t rounds, n of them its own.

    (mean + exploration gamma sqrt(2 ln t / n)) / (1 + 0.1 gamma); 300 rounds of random rewards.
    """
    dice, arms, rewards = random.Random(0), [1, 4, 2, 6], {arm: [] for arm in (1, 4, 2, 6)}
    policy = bandit(gammas=arms, exploration=exploration)
    for number in range(300):
        bound = {
            arm: (sum(seen) / len(seen) + exploration * arm * math.sqrt(2 * math.log(number) / len(seen)))
            / (1 + 0.1 * arm)
            for arm, seen in rewards.items()
            if seen
        }
        expected = arms[number] if number < len(arms) else max(bound, key=lambda arm: bound[arm])
        assert policy.next_gamma() == expected
        accepted = sum(dice.random() < 0.7 for _ in range(expected))
        policy.observe(readout((expected, accepted)))
        rewards[expected].append(1 + accepted)
    assert sum(len(seen) > 4 for seen in rewards.values()) >= 3, "the bound chose fewer than 3 arms"


def test_a_batch_is_rewarded_by_the_mean_of_the_rows_that_took_part() -> None:
    policy = bandit()
    policy.next_gamma()
    policy.observe(readout((1, 1), (1, 0), (4, 4, False)))
    assert policy.algorithm.rewards == pytest.approx([1.5 / 1.1 / (5 / 1.4), 0, 0])  # of the fastest, gamma 4
    policy.observe(readout((1, 1, False)))
    assert policy.algorithm.plays == [1, 0, 0]


def test_a_draft_that_the_budget_cut_rewards_no_arm() -> None:
    policy = bandit()
    assert gammas(policy, readout((1, 1)), readout((2, 2), max_depth=2)) == [1, 4, 4]
    assert policy.algorithm.plays == [1, 0, 0]
    assert gammas(policy, readout((1, 1)), readout((2, 2), max_depth=4)) == [1, 4, 2], (
        "a draft that is short without a budget cut earned its arm no reward"
    )


def test_exp3_draws_its_arms_alike_in_every_generation_and_prefers_the_fastest() -> None:
    policy, dice = Exp3(gammas=[1, 4, 2], c=0.1, seed=0), random.Random(0)
    drawn = []
    for _ in range(2):
        policy.begin()
        played = [policy.next_gamma()]
        for _ in range(400):
            policy.observe(readout((played[-1], sum(dice.random() < 0.95 for _ in range(played[-1])))))
            played.append(policy.next_gamma())
        assert played[200:].count(4) > played[200:].count(2) > played[200:].count(1) > 0
        drawn.append(played[0])
    assert drawn[0] == drawn[1]


def test_a_bandit_without_costs_says_which_key_to_set() -> None:
    with pytest.raises(ValueError, match=r"gamma\.c is None, .*; allowed: a number >= 0"):
        bandit(c=None).next_gamma()


# All policies


@pytest.mark.parametrize("name", POLICIES)
def test_gamma_stays_within_its_bounds(name: str) -> None:
    policy, dice = policy_of(name), random.Random(0)
    for _ in range(300):
        gamma = policy.next_gamma()
        assert isinstance(gamma, int) and 0 <= gamma <= policy.max_gamma
        offered = dice.randint(0, gamma)
        policy.observe(readout((offered, offered if dice.random() < 0.7 else dice.randint(0, offered))))


@pytest.mark.parametrize("name", POLICIES)
def test_equal_generations_ask_for_equal_gammas(name: str) -> None:
    """Earlier generations and other policies have no effect."""
    rounds = [readout((2, 2)), readout((3, 0)), readout((1, 1)), readout((1, 1)), readout((0, 0))]
    policy, other = policy_of(name), policy_of(name)
    first = gammas(policy, *rounds)
    gammas(other, *[readout((1, 0))] * 9)
    assert gammas(policy, *rounds) == first


WRONG = [
    (lambda: Fixed(gamma=-1), r"^gamma is -1; allowed: a whole number from 0 to 1000"),
    (lambda: Heuristic(initial=0, max_gamma=4), r"^initial is 0; allowed: a whole number from 1"),
    (lambda: Heuristic(initial=5, max_gamma=4), r"^initial is 5; allowed: at most max_gamma, 4"),
    (lambda: Heuristic(initial=1, max_gamma=1001), r"^max_gamma is 1001"),
    (lambda: Heuristic(initial=True, max_gamma=4), r"^initial is True"),
    (lambda: ConfidenceThreshold(max_gamma=0, threshold=0.5), r"^max_gamma is 0"),
    (lambda: ConfidenceThreshold(max_gamma=4, threshold=1.1), r"^threshold is 1\.1; allowed: .*\[0, 1\]"),
    (lambda: ConfidenceThreshold(max_gamma=4, threshold="high"), r"^threshold is 'high'"),
    (lambda: entropy_bound(factor=-1), r"^factor is -1; allowed: a number >= 0"),
    (lambda: entropy_bound(threshold=2), r"^threshold is 2; allowed: .*\[0, 1\]"),
    (lambda: StopHead(max_gamma=4, path="", threshold=-1), r"^threshold is -1"),
    (lambda: bandit(gammas=[]), r"^gammas is \[\]; allowed: a list of different gammas"),
    (lambda: bandit(gammas=[2, 2]), r"^gammas is \[2, 2\]"),
    (lambda: bandit(gammas=[2, 0.5]), r"^gammas is 0\.5; allowed: a whole number from 0"),
    (lambda: bandit(exploration=-1), r"^exploration is -1"),
    (lambda: Exp3(gammas=[1], c=0, seed=-1), r"^seed is -1; allowed: a whole number"),
    (lambda: bandit(c="measured"), r"^c is 'measured'"),
    (lambda: best(max_gamma=0), r"^max_gamma is 0"),
    (lambda: best(c=-0.1), r"^c is -0\.1; allowed: a number >= 0, or null"),
    (lambda: best(c="measured"), r"^c is 'measured'"),
    (lambda: best(c=math.nan), r"^c is nan"),
    (lambda: best(prior_accepted=0), r"^prior_accepted is 0"),
    (lambda: best(prior_rejected=math.inf), r"^prior_rejected is inf"),
    (lambda: best(forgetting=0), r"^forgetting is 0; allowed: .*\(0, 1\]"),
    (lambda: best(forgetting=1.5), r"^forgetting is 1\.5"),
    (lambda: best(probe_every=0), r"^probe_every is 0; allowed: a whole number >= 1, or null"),
    (lambda: best(probe_every=2.5), r"^probe_every is 2\.5"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_a_wrong_option_is_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# In the loop


class Asks:
    """Drafts token 1 gamma times and records its `should_continue` argument."""

    scheme, shape, stepwise = SamplingScheme.ONE_HOT, PromptLookup.shape, True

    def num_uniforms(self, gamma):
        return 0

    def begin(self, sequences, prefill, sampling):
        pass

    def propose(self, sequences, gamma, uniforms, should_continue=None):
        self.given = should_continue
        return Draft.chain(torch.ones(sequences.num_rows, gamma, dtype=torch.int64), self.scheme)

    def observe(self, sequences, outcome):
        pass


def engine(drafter, policy: GammaPolicy) -> Engine:
    return Engine(
        target=tiny_target(),
        drafter=drafter,
        verifier=SpeculativeSampling(),
        gamma_policy=policy,
        sampling=Sampling(temperature=0),
    )


def test_the_engine_hands_the_question_to_drafters_that_ask_it() -> None:
    """The engine passes `should_continue` with every call, so that a drafter can serve several policies."""
    drafter, threshold = Asks(), ConfidenceThreshold(max_gamma=2, threshold=0.5)
    for policy, given in ((threshold, threshold.should_continue), (Fixed(gamma=2), None)):
        engine(drafter, policy).generate([[5, 6]], stopping=Stopping(max_new_tokens=4), seeds=[0])
        assert drafter.given == given


def test_a_drafter_that_drafts_all_at_once_is_left_alone() -> None:
    drafter = PromptLookup(None, max_ngram=2, min_ngram=1, match="last")
    stopping = Stopping(max_new_tokens=12)
    tally = (
        engine(drafter, ConfidenceThreshold(max_gamma=3, threshold=1))
        .generate([[5, 6, 5, 6, 5]], stopping=stopping, seeds=[0])
        .tally
    )
    assert not is_stepwise(drafter)
    assert tally.passes[2:].sum() > 0  # a threshold of 1 would stop a stepwise draft after one node


def test_probing_rounds_are_the_only_ones_that_draft() -> None:
    """In 16 rounds of one token each, the fifth, tenth and fifteenth draft."""
    never_right = Asks()
    tally = (
        engine(never_right, best(c=2, probe_every=5))
        .generate([[5, 6]], stopping=Stopping(max_new_tokens=17), seeds=[0])
        .tally
    )
    assert tally.num_rounds == 16 and float(tally.accepted.sum(0)[1:].sum()) == 0
    assert tally.passes.tolist()[:2] == [13, 3]


class Watches(Fixed):
    """Records every readout."""

    def begin(self) -> None:
        self.readouts: list[Readout] = []

    def observe(self, readout: Readout) -> None:
        self.readouts.append(readout)


def test_the_loop_says_how_deep_a_budget_lets_drafts_be() -> None:
    """Prefill commits one token, and every draft leaves room for the token after it."""
    policy = Watches(gamma=3)
    engine(Asks(), policy).generate([[5, 6], [7]], stopping=Stopping(max_new_tokens=6), seeds=[0, 1])
    left = [5, 5]
    for observed in policy.readouts:
        assert observed.max_depth == [each - 1 for each in left]
        assert [min(3, depth) for depth in observed.max_depth] == observed.offered or 0 in observed.active
        left = [each - kept for each, kept in zip(left, observed.committed, strict=True)]
    assert left == [0, 0] and len(policy.readouts) > 2
