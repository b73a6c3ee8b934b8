"""What is predicted from counts and part times, also where gamma varies; and how a gamma policy gets to know them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.measurement.bench import measure
from experiments.measurement.metrics import (
    _prediction,
    graph_metrics,
    occupancy,
    time_over_parts,
    token_latency,
)
from experiments.measurement.plan import Candidate, Plan
from experiments.measurement.resource_cache import ResourceCache
from experiments.measurement.timing import PartTimes, Timed, time_parts
from experiments.proof.tiny_drafters import tiny_factory
from experiments.results.record import Record
from experiments.tracking.tracker import Point
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.stopping import Stopping
from framework.gamma_policies.auto import Auto
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.expected_speedup import ExpectedSpeedup
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import Costs, GammaPolicy
from framework.kernels import compiled_graphs
from framework.metrics import theory
from framework.metrics.graph_counts import GraphCounts
from framework.metrics.tally import Tally
from framework.prompts.prompt_set import Prompt, PromptSet
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.teacher_forced import TeacherForced
from framework.verifiers.verifier import Verifier

# One row takes 2 seconds, five take 3; a drafted token takes .2, a tenth of a target pass.
PARTS = PartTimes(one_row=2.0, nodes=[0, 1, 2, 3, 4], rows=[2.0, 2.2, 2.4, 2.8, 3.0], draft=0.8,
              draft_operations=20, row_operations=100, deepest_operations=504)  # fmt: skip


def tally_of(drafts: list[int], *, max_gamma: int = 4) -> Tally:
    """Rounds of one row that drafted so many nodes each; what became of them is left open."""
    tally = Tally(max_gamma)
    for nodes in drafts:
        tally.passes_by_nodes[nodes] += 1
        tally.rounds_by_depth[nodes, 0] += 1
    return tally


def predicted(
    tally: Tally, *, alpha: float | None, tau: float | None, occupied: float = 1.0
) -> dict[str, float | None]:
    tally.detailed = True
    tally.overlap_tested = sum(tally.tested_by_position)
    tally.overlap = (alpha or 0) * tally.overlap_tested
    tally.committed = (tau or 0) * tally.num_rounds
    metrics = tally.metrics() | {"speedup/measured": 1.5, "occupancy": occupied}
    assert (metrics["alpha/overlap"], metrics["tau"]) == (alpha, tau)
    return {"tau/eq1": metrics["tau/eq1"]} | _prediction(metrics, tally, PARTS)


@pytest.mark.parametrize("gamma", [1, 3, 4])
def test_a_fixed_gamma_has_the_papers_formulas(gamma: int) -> None:
    found = predicted(tally_of([gamma] * 7), alpha=0.8, tau=2.5)
    assert found["c"] == pytest.approx(0.1) and found["gamma/mean"] == gamma
    assert found["tau/eq1"] == pytest.approx(theory.expected_tokens(0.8, gamma))
    assert found["speedup/predicted"] == pytest.approx(theory.speedup(0.8, gamma, 0.1))
    assert found["operations"] == pytest.approx(theory.operations_factor(0.8, gamma, 0.05))
    # Counted: a further node costs 1.01 one-row passes, attention to the others included; and 2.5 tokens a pass.
    assert found["operations/counted"] == pytest.approx((0.05 * gamma + 1 + 1.01 * gamma) / 2.5)
    assert found["d"] == pytest.approx(0.1 * gamma) and found["v"] == pytest.approx(PARTS.rows[gamma] / 2)
    assert found["speedup/zero_overhead"] == pytest.approx(2.5 / (found["d"] + found["v"]))


def test_rows_that_wait_for_others_lower_what_can_be_attained() -> None:
    alone, waiting = (predicted(tally_of([4] * 7), alpha=0.8, tau=2.5, occupied=share) for share in (1.0, 0.75))
    assert waiting["speedup/zero_overhead"] == pytest.approx(0.75 * alone["speedup/zero_overhead"])


def test_occupancy() -> None:
    """Of two rows, one needs four passes and the other two; plain decoding of nine and five tokens takes eight."""

    def run(tokens: list[int], tally: Tally | None) -> Timed:
        rows = [[0] * count for count in tokens]
        return Timed(
            Generation(rows, [""] * len(rows), tally), seconds=1.0, decode_seconds=1.0, stages={}, graphs=GraphCounts()
        )

    tally = Tally(4)
    tally.passes_by_nodes[4] = 4
    tally.rounds_by_depth[4, 1] = 4 + 2
    assert occupancy([run([9, 5], tally)]) == 6 / 8
    assert occupancy([run([9, 5], None)]) == 12 / 16
    assert occupancy([run([9, 9], None), run([3], None)]) == 1
    assert occupancy([run([1, 1], None)]) == 1  # the prompt's own pass was all
    in_turn = replace(run([9, 5, 2], None), num_rows=2)  # the third prompt follows the second: 8 steps of two rows
    assert occupancy([replace(in_turn, generation=replace(in_turn.generation, num_steps=8))]) == 13 / 16


def run_of(num_tokens: int, round_seconds: list[float]) -> Timed:
    generation = Generation([[0] * num_tokens], [""], None)
    seconds = sum(round_seconds)
    return Timed(generation, seconds, seconds, stages={}, graphs=GraphCounts(), round_seconds=round_seconds)


def test_tokens_of_a_round_arrive_together() -> None:
    """Five tokens after the first in two rounds of 0.3 s, or in five steps of 0.2 s."""
    found = token_latency([[run_of(6, [0.3, 0.3])]], [[run_of(6, [0.2] * 5)]])
    assert found["inter_token_ms/sd"] == pytest.approx(np.std([300, 300, 0, 0, 0]))
    assert found["inter_token_ms/p99"] == pytest.approx(300)
    assert found["baseline_inter_token_ms/sd"] == pytest.approx(0, abs=1e-9)
    assert found["baseline_inter_token_ms/p99"] == pytest.approx(200)
    assert "ms_per_token/sd" not in found, "one prompt has no spread over prompts"


def test_the_spread_over_prompts_is_that_of_medians_over_repeats() -> None:
    repeats = [[run_of(3, [0.1, 0.1]), run_of(5, [0.4, 0.4])], [run_of(3, [0.3, 0.3]), run_of(5, [0.4, 0.4])]]
    assert token_latency(repeats, repeats)["ms_per_token/sd"] == pytest.approx(0)  # 200 ms a token in either
    steady = repeats[:1]
    assert token_latency(steady, steady)["ms_per_token/sd"] == pytest.approx(np.std([100, 200], ddof=1))


def test_rows_that_share_rounds_have_no_figures_of_their_own() -> None:
    two = Timed(Generation([[0], [0]], ["", ""], None), 1.0, 1.0, stages={}, graphs=GraphCounts())
    assert token_latency([[two]], [[two]]) == {} == token_latency([[replace(run_of(3, [0.1]), num_rows=1)]], [[two]])


def test_where_gamma_varies_each_figure_is_over_the_drafts_that_were_made() -> None:
    found = predicted(tally_of([0, 0, 2, 4]), alpha=0.5, tau=1.4)
    assert found["gamma/mean"] == 1.5
    assert found["tau/eq1"] == pytest.approx((1 + 1 + 1.75 + 1.9375) / 4)
    assert found["d"] == pytest.approx(0.15) and found["v"] == pytest.approx((1 + 1 + 1.2 + 1.5) / 4)
    assert found["speedup/predicted"] == pytest.approx((1 + 1 + 1.75 + 1.9375) / (1 + 1 + 1.2 + 1.4))
    assert found["speedup/zero_overhead"] == pytest.approx(1.4 / (0.15 + 1.175))
    assert found["operations"] == pytest.approx((4 + 6 + 6 * 0.05) / (1 + 1 + 1.75 + 1.9375))


def test_the_oracle_drafts_what_was_accepted_and_no_more() -> None:
    """Rounds of four nodes, of which 0, 1, 4 and 4 were accepted: 13 tokens for .9 of drafting and 5.1 of passes."""
    tally = Tally(4)
    tally.passes_by_nodes[4] = 4
    for accepted in (0, 1, 4, 4):
        tally.rounds_by_depth[4, accepted] += 1
    found = predicted(tally, alpha=0.8, tau=13 / 4)
    assert found["speedup/oracle_gamma"] == pytest.approx(13 / (0.9 + 5.1))
    assert found["speedup/zero_overhead"] == pytest.approx(13 / (1.6 + 6))
    tally.passes_by_nodes[4] = 2  # two rows at a time, which have one gamma
    assert "speedup/oracle_gamma" not in predicted(tally, alpha=0.8, tau=13 / 4)


def test_a_drafter_that_goes_no_deeper_is_not_charged_for_more() -> None:
    """Two heads, asked for four tokens: a draft is two deep and costs one proposal, whatever gamma is."""
    parts = PartTimes(one_row=2.0, nodes=[0, 3, 7, 7, 7], rows=[2.0, 2.4, 3.0, 9.0, 9.0], draft=0.8,
                  draft_operations=20, row_operations=100, deepest_operations=800)  # fmt: skip
    assert parts.depth(7) == 2 and parts.depth(3) == 1 and parts.depth(5) == 1.5
    assert parts.c * parts.depth(7) == pytest.approx(0.8 / 2.0) and parts.v(7) == 1.5
    assert parts.operations * parts.depth(7) == pytest.approx(20 / 100)


def test_nothing_tested_leaves_what_needs_alpha_open() -> None:
    found = predicted(tally_of([0, 0]), alpha=None, tau=1.0)
    assert found["tau/eq1"] is None and not {"speedup/predicted", "operations"} & set(found)
    assert (found["d"], found["v"], found["speedup/zero_overhead"]) == (0, 1, 1)
    assert found["speedup/oracle_gamma"] == 1
    assert set(predicted(tally_of([]), alpha=None, tau=None)) == {"tau/eq1", "c", "one_row_ms"}


def test_costs_are_in_one_row_passes() -> None:
    assert PARTS.costs.c == pytest.approx(0.1)
    assert PARTS.costs.target_times == pytest.approx((1, 1.1, 1.2, 1.4, 1.5))
    nothing_drafted = PartTimes(one_row=2.0, nodes=[0], rows=[2.0], draft=0.0,
                                  draft_operations=0, row_operations=9, deepest_operations=9)  # fmt: skip
    assert nothing_drafted.pass_operations(0) == 1
    assert nothing_drafted.costs == Costs(c=0, target_times=(1,))


def test_several_timings_of_parts_have_their_middle_in_one_row_times() -> None:
    slow = replace(PARTS, one_row=6.0, rows=[6.0, 6.6, 7.2, 8.4, 9.0], draft=2.4)  # the same machine at a third
    odd = replace(PARTS, draft=8.0)
    middle = PartTimes.middle([PARTS, slow, odd])
    assert (middle.one_row, middle.rows, middle.draft) == (2.0, pytest.approx(PARTS.rows), pytest.approx(0.8))


def test_a_loop_is_held_against_its_own_parts() -> None:
    """Plain decoding of 4 tokens takes 3 passes, and two rounds of 4 nodes take d + v twice; the pace cancels."""
    plain = timed_run([[1, 2, 3, 4]], 9.0, tally=None)
    rounds = timed_run([[1, 2, 3, 4]], 9.12, tally=tally_of([4, 4]))
    assert time_over_parts([(plain, PARTS)]) == pytest.approx(9 / 6)
    assert time_over_parts([(rounds, PARTS)]) == pytest.approx(9.12 / (2 * (0.8 + 3.0)))
    slow = replace(PARTS, one_row=4.0, rows=[2 * row for row in PARTS.rows], draft=1.6)
    assert time_over_parts([(replace(plain, decode_seconds=18.0), slow)]) == pytest.approx(9 / 6)
    nothing = timed_run([[1]], 0.0, tally=None)  # its only token came with reading the prompt
    assert time_over_parts([(nothing, PARTS), (plain, PARTS)]) == pytest.approx(9 / 6)


def test_graphs_of_warm_up_and_of_timed_runs_are_told_apart() -> None:
    quiet = timed_run([[1, 2]], 1.0, tally=None)
    warm_up = {"baseline": GraphCounts(compiled=2, captured=2), "ngram": GraphCounts(compiled=3, skipped=1)}
    runs = {"baseline": [[quiet]], "ngram": [[quiet], [quiet]]}
    expected = {"graphs/compiled": 5, "graphs/captured": 2, "graphs/not_captured": 1, "graphs/while_timed": 0}
    assert graph_metrics("ngram", warm_up, runs) == expected
    runs["baseline"] = [[replace(quiet, graphs=GraphCounts(compiled=1, captured=1))]]
    late = {"graphs/compiled": 6, "graphs/captured": 3, "graphs/while_timed": 2}
    assert graph_metrics("ngram", warm_up, runs) == expected | late


def timed_run(tokens: list[list[int]], seconds: float, tally: Tally | None) -> Timed:
    generation = Generation(tokens=tokens, finish_reasons=["length"] * len(tokens), tally=tally)
    return Timed(generation=generation, seconds=seconds, decode_seconds=seconds, stages={}, graphs=GraphCounts())


def build_engine(
    policy: GammaPolicy,
    drafter: str = "small_transformer",
    *,
    verifier: Verifier | None = None,
    compiled: bool = False,
) -> Engine:
    target = tiny_target()
    return Engine(
        target=target,
        drafter=tiny_factory(drafter, target.vocabulary_size)(target=target),
        verifier=verifier or SpeculativeSampling(),
        gamma_policy=policy,
        sampling=Sampling(temperature=0),
        compiled=compiled,
    )


def test_parts_are_those_of_a_whole_draft_where_a_policy_would_stop_it() -> None:
    policy, nodes, asked = ConfidenceThreshold(max_gamma=4, threshold=1), [], []
    keep, engine = policy.should_continue, build_engine(policy)
    policy.should_continue = lambda node: asked.append(1) or keep(node)
    honest = engine.drafter.propose

    def propose(sequences, gamma, uniforms, should_continue):
        draft = honest(sequences, gamma, uniforms, should_continue)
        nodes.append(draft.num_nodes)
        return draft

    engine.drafter.propose = propose
    parts = time_parts(engine, [[5, 6, 7]], seeds=[0], repeats=2)
    assert parts.pass_operations(4) == pytest.approx(5, rel=0.2) and parts.pass_operations(0) == 1
    assert set(nodes) == {4} and len(asked) == 3 * len(nodes)  # what asking takes is part of drafting
    nodes.clear()
    engine.generate([[5, 6, 7]], stopping=Stopping(max_new_tokens=9), seeds=[0])
    assert set(nodes) == {1}


class Notes(ExpectedSpeedup):
    """Notes the order of what is called on it."""

    def __init__(self) -> None:
        super().__init__(max_gamma=3, c=None, prior_accepted=1, prior_rejected=1, forgetting=0.9, probe_every=None)
        self.calls: list[str] = []

    def use_costs(self, costs: Costs) -> None:
        self.calls.append("use_costs")
        self.costs = costs
        super().use_costs(costs)

    def next_gamma(self) -> int:
        self.calls.append("next_gamma")
        return super().next_gamma()


def measured(
    engines: dict[str, Engine], folder: Path, *, compiled: bool = False, teacher_forced: bool = False
) -> list[Record]:
    """Records of two prompts with each engine."""
    candidates = [
        Candidate(Point(folder=folder, name=name, study="", settings={}, config={}), engine)
        for name, engine in engines.items()
    ]
    prompts = [Prompt(name=str(i), category="", tokens=(5, 6, 5, 6, i)) for i in range(2)]
    plan = Plan(
        prompt_set=PromptSet(prompts=prompts, num_truncated=0, num_skipped=0, chat=False),
        batch_size=1,
        stopping=Stopping(max_new_tokens=12),
        repeats=1,
        seed=0,
        hugging_face=False,
        compiled=compiled,
        teacher_forced=teacher_forced,
    )
    return measure(candidates, candidates[0].engine.target, Sampling(temperature=0), plan, ResourceCache())


@pytest.mark.slow
def test_measured_costs_reach_the_policy_before_anything_is_decoded_with_it(tmp_path: Path) -> None:
    policies = {"one": Notes(), "other": Notes()}
    engines = {name: build_engine(policy, "prompt_lookup") for name, policy in policies.items()}
    records = measured(engines, tmp_path)
    for policy, record in zip(policies.values(), records, strict=True):
        assert policy.calls[0] == "use_costs" and policy.calls.count("use_costs") == 1
        assert policy.calls.count("next_gamma") > 10
        assert policy.costs.c > 0 and record.metrics["c"] > 0
        assert len(policy.costs.target_times) == 4 and policy.costs.target_times[0] == 1
        assert record.metrics["tokens_equal_baseline"]
    assert policies["one"].costs is not policies["other"].costs


@pytest.mark.slow
def test_alpha_at_every_position_is_that_of_the_rule_that_accepts_nothing(tmp_path: Path) -> None:
    engines = {
        "own": build_engine(Fixed(gamma=3), "prompt_lookup"),
        "rule": build_engine(Fixed(gamma=1), "prompt_lookup", verifier=TeacherForced()),
    }
    own, rule = measured(engines, tmp_path, teacher_forced=True)
    assert own.metrics["alpha/teacher_forced"] == rule.metrics["alpha/overlap"] == rule.metrics["alpha/teacher_forced"]
    stages = [stage for stage, begin, end in own.trace["own"] if begin <= end]
    assert stages[:5] == ["prefill", "begin", "draft", "target", "verify"] and len(stages) == len(own.trace["own"])
    assert own.trace["baseline"][0][0] == "prefill" and own.metrics["inter_token_ms/sd"] > 0


AUTO = {"candidates": [0, 1, 2], "margin": 0, "most_loss": 1, "prior_weight": 1, "forgetting": 0.5, "profile": None}


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Fixed(gamma=2), Auto(**AUTO)], ids=["fixed", "auto"])
def test_nothing_is_compiled_while_timed(policy: GammaPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
    (record,) = measured({"own": build_engine(policy, compiled=True)}, tmp_path, compiled=True)
    assert record.metrics["graphs/compiled"] >= 2 and record.metrics["graphs/while_timed"] == 0
    assert record.metrics["graphs/captured"] == record.metrics["graphs/not_captured"] == 0
    assert record.stages["round"] > 0 and record.metrics["tokens_equal_baseline"]
