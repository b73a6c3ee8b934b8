"""gamma=auto: choices by hand, the bound on losses, and profiles from files."""

import json
import random

import pytest
import torch

from drafters.prompt_lookup import PromptLookup
from framework.conformance.tiny_models import tiny_target
from framework.core.option_error import OptionError
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies import auto as auto_module
from framework.gamma_policies.auto import ROUNDS_PER_SHADOW, Auto
from framework.gamma_policies.gamma_policy import Costs
from framework.gamma_policies.round_profile import AcceptanceByDepth, RoundProfile, give_costs
from tests.support.random_cases import Table
from tests.support.rounds import readout

TIMES = {0: 2.0, 1: 2.2, 2: 3.0, 4: 4.0}  # milliseconds; in rounds without a draft 1, 1.1, 1.5 and 2
REJECTED, NOTHING = (1, 0), (0, 0)


def auto(times=None, acceptance=(0.5,), *, restart_ms=0.0, found=1.0, miss_ms=None, **options) -> Auto:
    settings = {"candidates": [0, 1, 2, 4], "margin": 0.03, "most_loss": 0.125, "prior_weight": 1, "forgetting": 1}
    policy = Auto(**(settings | {"profile": None} | options))
    policy.use_profile(RoundProfile(times or TIMES, restart_ms, acceptance, found, miss_ms))
    policy.begin()
    return policy


def gammas(policy: Auto, *rounds: tuple[int, int]) -> list[int]:
    """Gamma before each round and after the last."""
    asked = [policy.next_gamma()]
    for seen in rounds:
        policy.observe(readout(seen))
        asked.append(policy.next_gamma())
    return asked


@pytest.mark.parametrize(
    ("acceptance", "best"),
    [
        ([0.0], 0),
        ([0.13], 0),  # 1.13 / 1.1 = 1.027
        ([0.14], 1),  # 1.14 / 1.1 = 1.036
        ([0.5], 1),  # 1.5 / 1.1 = 1.36, 1.75 / 1.5 = 1.17, 1.9375 / 2 = 0.97
        ([0.9], 4),  # 1.9 / 1.1 = 1.73, 2.71 / 1.5 = 1.81, 4.10 / 2 = 2.05
        ([0.9, 0.9, 0.0], 2),  # all deeper ones are rejected
    ],
)
def test_the_gamma_of_most_tokens_per_time(acceptance: list[float], best: int) -> None:
    assert auto(acceptance=acceptance).next_gamma() == best


@pytest.mark.parametrize(
    ("found", "miss_ms", "best"),
    [
        (1.0, 3.0, 1),  # 1.5 / 1.1
        (0.5, None, 1),  # 1.25 / 1.05
        (0.5, 2.6, 1),  # 1.25 / 1.2 = 1.042
        (0.5, 2.7, 0),  # 1.25 / 1.225 = 1.020
        (0.0, None, 0),
    ],
)
def test_looking_in_vain_takes_time(found: float, miss_ms: float | None, best: int) -> None:
    assert auto({0: 2.0, 1: 2.2}, [0.5], candidates=[0, 1], found=found, miss_ms=miss_ms).next_gamma() == best


def test_the_share_of_drafts_found_is_learnt() -> None:
    policy = auto({0: 1.0, 1: 1.2}, [1.0], candidates=[0, 1], found=1.0, miss_ms=1.25)
    assert gammas(policy, *[NOTHING] * 3) == [1, 1, 1, 0]  # 1.333 / 1.233 = 1.081, 1.25 / 1.2375 = 1.010
    assert policy.found == 1 / 4


def test_a_round_whose_budget_allows_no_draft_is_not_one_in_vain() -> None:
    policy = auto({0: 1.0, 1: 1.2}, [1.0], candidates=[0, 1], found=1.0, miss_ms=1.25)
    assert policy.next_gamma() == 1
    policy.observe(readout(NOTHING, max_depth=0))
    assert policy.found == 1


def test_rates_are_learnt_by_depth_and_forgotten() -> None:
    policy = auto(acceptance=[0.9], forgetting=0.5)
    assert policy.next_gamma() == 4
    policy.observe(readout((4, 1)))
    assert policy.rates == [[(0.9 + 1) / 2, 0.9 / 2, 0.9, 0.9]]
    assert policy.next_gamma() == 1
    policy.observe(readout((1, 1), (0, 0), (1, 1, False)))  # the second row was offered nothing, the third has ended
    # Rates of the others by depth: 0.9 / 2 and 0.9 for the first row, 2.4 / 2.5 and 0.9 / 1.5 for the second.
    first, second = policy.rates
    assert first == pytest.approx([(0.45 + 0.5 + 1) / (1 + 0.5 + 1), 0.9 / (1 + 0.5), 0.9, 0.9])
    assert second == pytest.approx([0.96 / 2, 0.6, 0.9, 0.9])
    policy.begin()
    assert policy.rates == [[0.9] * 4]


def test_only_rows_that_decode_decide() -> None:
    """The mean of both rows pays; once the row that accepts has ended, the other one stops drafting at once."""
    policy = auto(acceptance=[0.5], candidates=[0, 1])
    for _ in range(8):
        assert policy.next_gamma() == 1
        policy.observe(readout((1, 1), (1, 0)))
    assert policy.next_gamma() == 1
    policy.observe(readout((1, 0, False), (1, 0)))
    assert policy.next_gamma() == 0


def test_a_prompt_that_begins_in_a_row_has_the_rates_of_all() -> None:
    policy = auto(acceptance=[0.5], candidates=[0, 1])
    for _ in range(4):
        policy.next_gamma()
        policy.observe(readout((1, 1), (1, 0)))
    assert policy.rates[1] == pytest.approx([(4.5 / 5) / 5])  # the other row: 4 of 4
    policy.begin_rows([1])
    assert policy.rates[1] == pytest.approx([4.5 / 9])
    policy.next_gamma()
    policy.observe(readout((1, 1), (1, 0, False)))  # the second row waits for a prompt
    assert len(policy.rates) == 1
    policy.begin_rows([1])
    assert len(policy.rates) == 2


def test_a_row_without_a_node_in_a_round_that_drafts_counts_as_rejected_unless_its_budget_ends() -> None:
    counts = AcceptanceByDepth(3)
    counts.observe(2, readout((2, 2), (0, 0)))
    counts.observe(3, readout((0, 0), (0, 0)))  # nobody drafted
    counts.observe(3, readout((1, 1), max_depth=1))
    assert (counts.accepted, counts.tested) == ([2, 1, 0], [3, 1, 0])
    # 2.5 / 4; (0.625 + 1) / 2; nothing tested: as above
    assert counts.measured() == [0.625, 0.8125, 0.8125]


def test_where_drafting_does_not_pay_tests_wait_until_they_are_covered() -> None:
    """A test of one node costs half a round, which four rounds without a draft cover."""
    policy = auto({0: 1.0, 1: 1.5, 2: 2.5}, acceptance=[0.0], candidates=[0, 1, 2])
    found = gammas(policy, *[NOTHING] * 4, REJECTED, *[NOTHING] * 4)
    assert found == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_the_first_draft_after_a_pause_costs_its_restart() -> None:
    policy = auto({0: 1.0, 1: 1.25}, acceptance=[0.0], candidates=[0, 1], restart_ms=0.25)
    assert gammas(policy, *[NOTHING] * 4, REJECTED, *[NOTHING] * 4) == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]


def test_a_success_is_followed_by_drafts() -> None:
    policy = auto({0: 1.0, 1: 1.5, 2: 2.5}, acceptance=[0.0], candidates=[0, 1, 2])
    # After one accepted node the rate is 1 / 2, and 1.5 tokens take 1.5; a test is still covered. After two it pays.
    assert gammas(policy, *[NOTHING] * 4, (1, 1), (1, 1)) == [0, 0, 0, 0, 1, 1, 1]


def test_drafts_that_can_never_pay_are_not_tested() -> None:
    policy = auto({0: 1.0, 1: 2.0, 2: 3.0}, acceptance=[1.0], candidates=[0, 1, 2])
    assert gammas(policy, *[NOTHING] * 300) == [0] * 301 and policy.usable == [0]


def shadowing(times: dict[int, float], acceptance: list[float], **options) -> Auto:
    policy = auto(times, acceptance, most_loss=1, **options)
    policy.allow_shadows()
    return policy


def shadows(policy: Auto, num_rounds: int, *results: tuple[int, int]) -> list[int]:
    """Rounds without a draft beside which a shadow draft is made, with these results in order."""
    made = []
    for number in range(num_rounds):
        assert policy.next_gamma() == 0
        is_due = policy.is_shadow_due
        policy.observe(readout(NOTHING))
        if is_due:
            policy.observe_shadow(readout(results[len(made)]))
            made.append(number)
    return made


def test_shadow_drafts_replace_tests_that_cost_a_target_pass() -> None:
    policy = shadowing({0: 1.0, 1: 1.5, 2: 2.5}, [0.0], candidates=[0, 1, 2])
    assert shadows(policy, 3 * ROUNDS_PER_SHADOW, *[REJECTED] * 3) == [
        place * ROUNDS_PER_SHADOW - 1 for place in (1, 2, 3)
    ]
    policy.begin()  # permission ends with the generation
    assert gammas(policy, NOTHING) == [0, 1] and not policy.is_shadow_due


def test_without_a_share_for_tests_there_are_no_shadow_drafts() -> None:
    policy = auto({0: 1.0, 1: 1.5}, [0.0], candidates=[0, 1], most_loss=0)
    policy.allow_shadows()
    assert shadows(policy, 2 * ROUNDS_PER_SHADOW) == []


def test_a_shadow_draft_that_would_have_paid_is_followed_by_others_and_then_by_drafts() -> None:
    """After one, the rate is 1 / 2, and 1.5 tokens take 1.5; after two it pays."""
    policy = shadowing({0: 1.0, 1: 1.5, 2: 2.5}, [0.0], candidates=[0, 1, 2])
    first = ROUNDS_PER_SHADOW - 1
    assert shadows(policy, first + 2, (1, 1), (1, 1)) == [first, first + 1]
    assert policy.rates == [pytest.approx([2 / 3, 0.0])]
    assert policy.next_gamma() == 1 and not policy.is_shadow_due


def test_a_shadow_draft_in_which_nothing_is_found_counts_as_a_miss() -> None:
    policy = shadowing({0: 1.0, 1: 1.5, 2: 2.5}, [0.0], candidates=[0, 1, 2])
    shadows(policy, ROUNDS_PER_SHADOW, NOTHING)
    assert policy.found == 0.5 and policy.rates == [[0.0, 0.0]]


@pytest.mark.parametrize("times", [{0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 2.0, 2: 2.2}])
def test_shadow_drafts_are_made_only_where_one_token_can_pay(times: dict[int, float]) -> None:
    """They say nothing of deeper tokens, which drafts of two then test."""
    policy = shadowing(times, [0.0], candidates=[0, 1, 2])
    assert policy.usable == ([0] if times[2] == 3 else [0, 2])
    tested = gammas(policy, *[NOTHING] * 2 * ROUNDS_PER_SHADOW)
    assert not policy.is_shadow_due and max(tested) == policy.usable[-1]


@pytest.mark.parametrize("temperature", [0, 1])
def test_prompt_lookup_is_tested_by_shadow_drafts_while_rows_take_further_prompts(temperature, monkeypatch) -> None:
    monkeypatch.setattr(auto_module, "ROUNDS_PER_SHADOW", 1)
    target, sampling = tiny_target(), Sampling(temperature=temperature)
    prompts = [[5, 6, 7, 5, 6], [9], [3, 3], [1, 2, 1, 2, 1], [30], [7] * 9]
    given = {"prompts": prompts, "stopping": Stopping(12, eos_ids=(9,)), "seeds": list(range(6))}
    lookup = PromptLookup(target, max_ngram=3, min_ngram=1, match="last")
    policy = auto({0: 1.0, 1: 1.9, 2: 2.5}, [0.0], candidates=[0, 1, 2])
    seen, observe = [], policy.observe_shadow
    monkeypatch.setattr(policy, "observe_shadow", lambda shadow: (seen.append(shadow), observe(shadow)))
    engine = Engine(target=target, drafter=lookup, gamma_policy=policy, sampling=sampling)
    first, second = (engine.generate(**given, queue=Queue(6, num_rows=2)) for _ in range(2))
    assert first.tokens == second.tokens and len(seen) > 20
    if not temperature:
        plain = Autoregressive(target=target, sampling=sampling)
        assert first.tokens == plain.generate(**given, queue=Queue(6, num_rows=2)).tokens


def test_tests_of_a_drafter_that_never_agrees_cost_no_more_than_allowed() -> None:
    """In rounds without a draft: most_loss for each of them; the profile expects that drafting does not pay."""
    dice = random.Random(0)
    tested = 0
    for _ in range(100):
        times = {gamma: 1 + gamma * dice.choice([0.1, 0.2, 0.6, 0.9]) for gamma in (0, 1, 2, 4)}
        restart, most_loss = dice.choice([0.0, 0.5]), dice.choice([0.0, 0.02, 0.2])
        policy = auto(times, [0.0], restart_ms=restart, most_loss=most_loss, forgetting=0.9)
        paused, loss, undrafted = False, 0.0, 0
        for _ in range(200):
            gamma = policy.next_gamma()
            policy.observe(readout((gamma, 0)))
            loss += times[gamma] + restart * paused - 1 if gamma else 0.0
            undrafted, paused, tested = undrafted + (not gamma), not gamma, tested + bool(gamma)
            assert loss <= most_loss * undrafted + 1e-9
    assert tested > 500


def test_drafting_stops_soon_after_a_wrong_profile() -> None:
    """0.9 with the weight of one row is 0.15 after five rejections, 1.15 / 1.1 = 1.045, and 0.129 after six."""
    assert gammas(auto(acceptance=[0.9]), *[REJECTED] * 6) == [4, 1, 1, 1, 1, 1, 0]


class Counting(Table):
    """A drafter that counts its drafts."""

    drafts = 0

    def propose(self, sequences, gamma, uniforms):
        self.drafts += 1
        return super().propose(sequences, gamma, uniforms)


def decoded(drafter: Table, policy: Auto, *, temperature: float, max_new_tokens: int = 40):
    engine = Engine(
        target=tiny_target(), drafter=drafter, gamma_policy=policy, sampling=Sampling(temperature=temperature)
    )
    return engine.generate([[5, 6, 7], [9]], stopping=Stopping(max_new_tokens), seeds=[0, 1])


def test_huge_costs_make_no_draft_and_call_no_drafter() -> None:
    costs = Costs(c=0.1, target_times=(1, 50, 60, 70, 80))
    policy, drafter = auto(), Counting(vocabulary=50, sparse=False, seed=0)
    give_costs(policy, costs)
    generation = decoded(drafter, policy, temperature=1)
    assert drafter.drafts == 0 and generation.tally.gammas.tolist() == [39, 0, 0, 0, 0]
    assert generation.tally.metrics()["undrafted"] == 1 and generation.tally.metrics()["gamma/chosen"] == 0
    decoded(drafter, auto(acceptance=[0.9]), temperature=1)
    assert drafter.drafts > 0  # the same drafter at costs that pay


def test_equal_profiles_give_equal_tokens_and_another_profile_other_gammas() -> None:
    drafter = Table(vocabulary=50, sparse=False, seed=0)
    lively = {"times": {0: 1.0, 1: 1.5, 2: 1.6, 4: 1.9}, "acceptance": [0.6], "forgetting": 0.5}
    first, second = (decoded(drafter, auto(**lively), temperature=1) for _ in range(2))
    assert first.tokens == second.tokens and first.tally.gammas.tolist() == second.tally.gammas.tolist()
    assert torch.count_nonzero(torch.tensor(first.tally.gammas)) > 1
    other = decoded(drafter, auto({0: 1.0, 1: 5.0, 2: 6.0, 4: 7.0}), temperature=1)
    assert other.tally.gammas.tolist() != first.tally.gammas.tolist()


def test_a_profile_comes_from_its_file_or_from_a_record(tmp_path) -> None:
    profile = RoundProfile({0: 1.0, 2: 1.5}, 0.25, [0.75, 0.5])
    assert RoundProfile.from_json(json.loads(json.dumps(profile.to_json()))) == profile
    (tmp_path / "profile.json").write_text(json.dumps({"of": {}, **profile.to_json()}))
    (tmp_path / "record.json").write_text(json.dumps({"round_profile": profile.to_json()}))
    for name in ("profile.json", "record.json"):
        policy = auto(profile=str(tmp_path / name))  # which keeps it, whatever experiments measured
        assert policy.profile == profile and not policy.awaits_profile and policy.next_gamma() == 2


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"round_ms": {"1": 1}, "restart_ms": 0, "acceptance": [0.5]}',
     '{"round_ms": {"0": 0}, "restart_ms": 0, "acceptance": [0.5]}',
     '{"round_ms": {"0": 1}, "restart_ms": 0, "acceptance": [1.5]}', '{"round_profile": null}'],
)  # fmt: skip
def test_a_file_without_a_profile_is_refused(content: str, tmp_path) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(OptionError, match=r"profile is .*file\.json.*; allowed: a stored profile, or a record"):
        auto(profile=str(tmp_path / "file.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": [1, 2]}, "candidates is"),
        ({"candidates": [0, 1, 1]}, "candidates is"),
        ({"candidates": [0, 1.5]}, "candidates is"),
        ({"candidates": 4}, "candidates is 4"),
        ({"margin": -1}, "margin is -1"),
        ({"most_loss": 2}, "most_loss is 2"),
        ({"prior_weight": 0}, "prior_weight is 0"),
        ({"forgetting": 0}, "forgetting is 0"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        auto(**options)


def test_without_a_profile_the_key_is_named() -> None:
    policy = Auto(candidates=[0, 1], margin=0, most_loss=0, prior_weight=1, forgetting=1, profile=None)
    with pytest.raises(OptionError, match=r"gamma\.profile is None, and no rounds were measured"):
        policy.next_gamma()


def test_a_profile_that_cannot_be_read_names_its_option(tmp_path) -> None:
    with pytest.raises(
        OSError, match=r"^profile is '.*', which cannot be read: No such file or directory; allowed: a "
    ):
        auto(profile=str(tmp_path / "none.json"))
