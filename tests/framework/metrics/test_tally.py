"""Counts of rounds, their ratios, and the check of counts against distributions."""

import json

import pytest
import torch
from torch import Tensor

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape, TargetRows
from framework.core.sampling import Sampling, draw
from framework.core.uniforms import Uniforms
from framework.metrics.tally import Tally
from framework.metrics.theory import expected_tokens
from framework.verifiers.speculative_sampling import SpeculativeSampling
from tests.support.rounds import readout_of

GAMMA = 3
CPU = torch.device("cpu")
P = torch.tensor([0.5, 0.3, 0.15, 0.05])
Q = torch.tensor([0.2, 0.3, 0.1, 0.4])


def made_by_hand(rows: list[tuple[int, int, bool]], num_nodes: int = GAMMA) -> Outcome:
    """Outcome of rows (offered, accepted, active); finished rows commit nothing."""
    offered, accepted, active = (torch.tensor(column) for column in zip(*rows, strict=True))
    valid = torch.arange(num_nodes) < offered.unsqueeze(1)
    draft = Draft.chain(torch.zeros(len(rows), num_nodes, dtype=torch.int64), SamplingScheme.ONE_HOT, valid=valid)
    return Outcome(
        draft=draft,
        stop_probs=torch.nn.functional.one_hot(accepted, num_nodes + 1).float(),
        stop=accepted,
        num_accepted=accepted,
        next_token=torch.zeros_like(accepted),
        num_committed=(accepted + 1) * active,
        active=active,
        target=TargetRows(torch.zeros(len(rows), num_nodes + 1, 4), draft, Sampling()),
    )


def observe(tally: Tally, outcome: Outcome) -> None:
    """Count a round as the engine does."""
    tally.observe(readout_of(outcome), gamma=min(outcome.draft.num_nodes, tally.max_gamma))
    if tally.detailed:
        tally.observe_distributions(outcome)


def played(
    tally: Tally,
    seed: int,
    *,
    rounds: int = 10,
    p: Tensor = P,
    q: Tensor | None = Q,
    reported: Tensor | None = None,
    stops: Tensor | None = None,
    ragged: bool = False,
) -> Tally:
    """Count rounds of 20 rows with equal p and q everywhere, one stream per seed.

    Args:
        q: distribution of drafted tokens; None always chooses token 0.
        reported: the draft's probs, if not q.
        stops: [GAMMA + 1] distribution of stops, if not the verifier's.
        ragged: whether rows offer 0 to GAMMA nodes in turn; else all.
    """
    verifier, rows = SpeculativeSampling(), 20
    uniforms = Uniforms(list(range(seed * rows, (seed + 1) * rows)), GAMMA + 1, CPU)
    for _ in range(rounds):
        numbers = uniforms.next_round().numbers
        if q is None:
            draft = Draft.chain(torch.zeros(rows, GAMMA, dtype=torch.int64), SamplingScheme.ONE_HOT)
        else:
            probs = (q if reported is None else reported).expand(rows, GAMMA, -1)
            draft = Draft.chain(draw(q, numbers[:, 1:]), SamplingScheme.IID, probs=probs)
        if ragged:
            draft = draft.offered(torch.arange(GAMMA) < torch.arange(rows).unsqueeze(1) % (GAMMA + 1))
        target = TargetRows(p.log().expand(rows, GAMMA + 1, -1), draft, Sampling())
        stop_probs = verifier.stop_probs(target, draft)
        stop = draw(stop_probs if stops is None else stops, numbers[:, 0])
        observe(
            tally,
            Outcome(
                draft=draft,
                stop_probs=stop_probs,
                stop=stop,
                num_accepted=stop,
                next_token=torch.zeros_like(stop),
                num_committed=stop + 1,
                active=torch.ones(rows, dtype=torch.bool),
                target=target,
            ),
        )
    return tally


ROUND = [(3, 0, True), (3, 3, True), (3, 1, True), (2, 2, True), (0, 0, True), (3, 2, False)]


def test_counts_of_a_round_made_by_hand() -> None:
    tally = Tally(GAMMA)
    observe(tally, made_by_hand(ROUND))
    assert tally.tested_by_position == [4, 3, 1]
    assert tally.accepted_by_position == [3, 2, 1]
    assert tally.num_rounds == 5  # finished rows do not count
    assert tally.passes.tolist() == [0, 0, 0, 1]
    metrics = tally.metrics()
    assert metrics["alpha/empirical"] == 6 / 8  # 11 proposed nodes, 8 tested
    assert [metrics[f"alpha/position/{i}"] for i in (1, 2, 3)] == [3 / 4, 2 / 3, 1]
    assert metrics["tau"] == (6 + 5) / 5


def test_the_end_of_a_branch_is_no_rejection() -> None:
    """Nodes 0 and 1 follow pending, 2 follows 0; rows stop at pending, leaf 1 and 2."""
    stop, num_accepted = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2])
    tokens, parent = torch.tensor([[0, 1, 0]]).expand(3, -1), torch.tensor([[-1, -1, 0]]).expand(3, -1)
    draft = Draft(tokens, parent, torch.ones(3, 3, dtype=torch.bool), SamplingScheme.ONE_HOT, shape=Shape.TREE)
    tally = Tally(2, 3, shape=Shape.TREE, detailed=True, token_rule=False)
    observe(
        tally,
        Outcome(
            draft=draft,
            stop_probs=torch.nn.functional.one_hot(stop, 4).float(),
            stop=stop,
            num_accepted=num_accepted,
            next_token=torch.zeros_like(stop),
            num_committed=num_accepted + 1,
            active=torch.ones(3, dtype=torch.bool),
            target=TargetRows(torch.zeros(3, 4, 4), draft, Sampling()),
        ),
    )
    assert tally.tested_by_position == [3, 1] and tally.accepted_by_position == [2, 1]
    metrics = tally.metrics()
    assert metrics["alpha/empirical"] == 3 / 4 and metrics["tau"] == 2
    assert metrics["tau/eq1"] is None, "Eq. 1 is defined for chains"


def test_finished_rows_do_not_count() -> None:
    tally = Tally(GAMMA, detailed=True)
    observe(tally, made_by_hand([(3, 2, False), (0, 0, False)]))
    assert tally.num_rounds == tally.committed == tally.overlap == tally.expected == 0
    assert tally.tested_by_position == tally.accepted_by_position == [0, 0, 0]


def test_nothing_tested_is_none_and_no_error() -> None:
    nothing = ("tau", "alpha/empirical", "gamma/chosen", "undrafted")
    assert Tally(0).metrics() == dict.fromkeys(nothing)
    tally = Tally(2, detailed=True)
    observe(tally, made_by_hand([(0, 0, True)], num_nodes=0))
    metrics = tally.metrics()
    assert metrics["tau"] == 1 and metrics["alpha/check"]
    assert metrics["alpha/empirical"] is metrics["alpha/overlap"] is metrics["tau/eq1"] is None
    assert metrics["alpha/position/1"] is metrics["alpha/position/2"] is None


def test_drafts_shorter_than_max_gamma() -> None:
    tally = Tally(GAMMA)
    observe(tally, made_by_hand([(1, 1, True), (1, 0, True)], num_nodes=1))
    assert tally.tested_by_position == [2, 0, 0] and tally.accepted_by_position == [1, 0, 0]
    assert tally.passes.tolist() == tally.gammas.tolist() == [0, 1, 0, 0]
    assert tally.metrics()["gamma/chosen"] == 1 and tally.metrics()["undrafted"] == 0


def test_what_is_undetailed_has_no_sums_over_distributions() -> None:
    metrics = played(Tally(GAMMA), seed=0).metrics()
    assert not {"alpha/overlap", "tau/eq1", "alpha/check"} & set(metrics)


def test_merging_is_one_tally_of_both() -> None:
    for detailed in (False, True):
        both = played(played(Tally(GAMMA, detailed=detailed), seed=0), seed=1, rounds=5)
        merged = played(Tally(GAMMA, detailed=detailed), seed=0)
        merged.add(played(Tally(GAMMA, detailed=detailed), seed=1, rounds=5))
        counts, expected = merged.counts(), both.counts()
        assert counts.keys() == expected.keys()
        for key, value in counts.items():
            assert torch.allclose(torch.tensor(value), torch.tensor(expected[key]), rtol=1e-6, atol=0), key
        assert merged.metrics() == pytest.approx(both.metrics(), rel=1e-12)
    for other in (Tally(0, detailed=True), Tally(GAMMA)):
        with pytest.raises(ValueError, match="gamma="):
            merged.add(other)


def test_a_lossy_rule_is_held_to_its_own_distributions_alone() -> None:
    """Its acceptance may exceed the overlap."""
    tally, lenient = Tally(GAMMA, detailed=True), Tally(GAMMA, detailed=True, token_rule=False)
    for each in (tally, lenient):
        each.rounds_by_depth[3, 3] = 200
        each.overlap, each.overlap_tested, each.overlap_variance = 300.0, 600, 100.0
        each.expected, each.expected_variance = 600.0, 0.0
    assert lenient.metrics()["alpha/check"] and not tally.metrics()["alpha/check"]
    assert lenient.metrics()["tau/eq1"] == GAMMA + 1 > tally.metrics()["tau/eq1"], "alpha is the acceptance rate, 1"
    lenient.expected = 500.0
    assert not lenient.metrics()["alpha/check"]
    with pytest.raises(ValueError, match="verifier="):
        tally.add(lenient)


def test_counts_are_plain_numbers() -> None:
    counts = played(Tally(GAMMA, detailed=True), seed=0).counts()
    assert json.loads(json.dumps(counts)) == counts


def test_ratios_are_those_of_the_distributions() -> None:
    """Equal overlaps everywhere give alpha and tau; bounds of 6 standard deviations, 2e-9 each."""
    tally = played(Tally(GAMMA, detailed=True), seed=0, rounds=500)
    metrics, alpha = tally.metrics(), torch.minimum(P, Q).sum().item()
    assert metrics["alpha/overlap"] == pytest.approx(alpha, abs=1e-6)
    tested = sum(tally.tested_by_position)
    assert abs(metrics["alpha/empirical"] - alpha) < 6 * (alpha * (1 - alpha) / tested) ** 0.5
    for position, number in enumerate(tally.tested_by_position, start=1):
        assert abs(metrics[f"alpha/position/{position}"] - alpha) < 6 * (alpha * (1 - alpha) / number) ** 0.5
    assert metrics["tau/eq1"] == pytest.approx(expected_tokens(alpha, GAMMA), abs=1e-5)
    assert abs(metrics["tau"] - metrics["tau/eq1"]) < 6 * GAMMA / 2 / tally.num_rounds**0.5
    assert tally.overlap_variance == pytest.approx(tested * alpha * (1 - alpha), rel=1e-5)


# A check that fires on 1 right stream in 8,000 fires on 3 or more of 50 with probability 4e-8.
STREAMS, FALSE_ALARMS = 50, 2

RIGHT = {
    "drawn": {},
    "chosen": {"q": None},
    "ragged": {"ragged": True},
    "equal": {"q": P},
    "disjoint": {"p": torch.tensor([1.0, 1.0, 0.0, 0.0]) / 2, "q": torch.tensor([0.0, 0.0, 1.0, 1.0]) / 2},
    # A rare rejection is many standard deviations off, without a fault.
    "rarely_lost": {"p": torch.tensor([0.9995, 0.0005, 0.0, 0.0]), "q": None, "rounds": 2},
    "rarely_kept": {"p": torch.tensor([0.0005, 0.9995, 0.0, 0.0]), "q": None, "rounds": 4},
}


@pytest.mark.parametrize("stream", RIGHT.values(), ids=RIGHT)
def test_check_is_quiet_on_right_distributions(stream: dict) -> None:
    checks = [played(Tally(GAMMA, detailed=True), seed, **stream).metrics()["alpha/check"] for seed in range(STREAMS)]
    assert checks.count(False) <= FALSE_ALARMS


WRONG = {
    "another_q": {"reported": torch.tensor([0.4, 0.3, 0.2, 0.1])},
    "tempered_q": {"reported": (Q.log() / 0.5).softmax(0)},
    "chosen_as_drawn": {"q": torch.tensor([1.0, 0.0, 0.0, 0.0]), "reported": Q},
    "kept_too_often": {"stops": torch.tensor([0.3, 0.2, 0.1, 0.4])},
    "kept_too_rarely": {"stops": torch.tensor([0.5, 0.25, 0.15, 0.1])},
}


@pytest.mark.parametrize("stream", WRONG.values(), ids=WRONG)
def test_check_fires_on_wrong_distributions(stream: dict) -> None:
    """2,000 rows, and distributions at least 9 standard deviations off.

    1 in 1e6 such streams stays within the bounds.
    """
    assert not played(Tally(GAMMA, detailed=True), seed=0, **{"rounds": 100, **stream}).metrics()["alpha/check"]
