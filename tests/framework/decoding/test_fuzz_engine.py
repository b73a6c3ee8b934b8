"""The engine against plain decoding under random prompts, models, stops, drafters and policies; consistent counts."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from framework.conformance.test_doubles import Dictated, Pattern, Proposal, Witness
from framework.core.draft import Draft, Outcome
from framework.core.drafter import ShouldContinue, proposal
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.decoding.generation import Generation
from framework.decoding.stopping import Stopping
from framework.metrics.equality import TORN, differences
from framework.metrics.stopwatch import Stopwatch
from framework.models.target import Target
from framework.verifiers.lenience import Lenience
from framework.verifiers.speculative_sampling import SpeculativeSampling
from framework.verifiers.verifier import Guarantee, Verifier
from tests.support.fuzzing import fuzz
from tests.support.random_cases import (
    ALL_POLICIES,
    BRANCHING,
    DRAWING,
    LENIENT,
    MAX_GAMMA,
    PER_ROW,
    POLICY_NAMES,
    THREE_SIZES,
    YAMLS,
    Case,
    DrafterChoice,
    Guesses,
    build_drafter,
    cases,
    fits,
    models,
    policies,
    uncached,
)

GREEDY = Sampling(temperature=0)
ROUNDING = {torch.float32: TORN, torch.float64: 1e-9}  # largest difference of logits by rounding


@dataclass
class Recorder(Witness):
    """A witness that records proposals and outcomes by round."""

    outcomes: list[Outcome] = field(default_factory=list)
    proposal_of: dict[int, Proposal] = field(default_factory=dict)

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        draft = super().propose(sequences, gamma, uniforms, should_continue)
        self.proposal_of[len(self.outcomes)] = self.proposals[-1]
        return draft

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        super().observe(sequences, outcome)
        self.outcomes.append(outcome)


# Temperature 0


@fuzz(
    20,
    few=False,
    case=cases(ALL_POLICIES, models(torch.float64, torch.float32)),
    verifier=st.sampled_from([SpeculativeSampling(), Lenience(lenience=1)]),
    detailed=st.booleans(),
)
def test_greedy_decoding_is_plain_decoding(case: Case, verifier: Verifier, detailed: bool) -> None:
    assert_is_plain_decoding(case, verifier, detailed)


@fuzz(10, case=cases(ALL_POLICIES, models(torch.float64, torch.float32), drafters=BRANCHING), detailed=st.booleans())
def test_greedy_decoding_with_trees_is_plain_decoding(case: Case, detailed: bool) -> None:
    assert_is_plain_decoding(case, SpeculativeSampling(), detailed)


def assert_is_plain_decoding(case: Case, verifier: Verifier, detailed: bool) -> None:
    expected = case.plain(GREEDY)
    drafter = build_drafter(case.drafter, case.model)
    if isinstance(drafter, Guesses):
        drafter.truths = {tuple(prompt): tokens for prompt, tokens in zip(case.prompts, expected.tokens, strict=True)}
    recorder = Recorder(drafter)
    engine = case.engine(recorder, verifier, GREEDY)
    got = engine.generate(case.prompts, stopping=case.stopping, seeds=case.seeds, detailed=detailed)
    found = differences(case.target, case.prompts, expected.tokens, got.tokens)
    assert all(difference.margin < ROUNDING[case.model.dtype] for difference in found), (found, expected, got)
    if not found:
        assert got.finish_reasons == expected.finish_reasons
    for tokens, logits in zip(got.tokens, uncached_new(case, got), strict=True):
        gap = logits.amax(1) - logits.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)
        assert gap.max() < ROUNDING[case.model.dtype]
    assert_ends_are_right(case, got)
    assert_counts_add_up(case, got, recorder.outcomes)
    counts = got.tally.counts()
    if detailed:  # at temperature 0 stops are certain: expected counts equal observed ones
        assert counts["expected"] == counts["accepted"] and counts["expected_variance"] == 0


def uncached_new(case: Case, generation: Generation) -> list[Tensor]:
    """[new tokens, V] logits of every row, from which its new tokens were taken."""
    rows = list(zip(case.prompts, generation.tokens, strict=True))
    logits = uncached(case.target, [prompt + tokens for prompt, tokens in rows])
    return [
        its[len(prompt) - 1 : len(prompt) - 1 + len(tokens)] for its, (prompt, tokens) in zip(logits, rows, strict=True)
    ]


def assert_ends_are_right(case: Case, generation: Generation) -> None:
    """Check that every row ends at its first ending token, for the first applicable reason."""
    stopping = case.stopping
    for prompt, tokens, reason in zip(case.prompts, generation.tokens, generation.finish_reasons, strict=True):
        reasons = []
        for end in range(1, len(tokens) + 1):
            text = stopping.tokenizer.decode(tokens[:end])
            budget, context = end == stopping.max_new_tokens, len(prompt) + end == case.model.context
            causes = {
                "eos": tokens[end - 1] in stopping.eos_ids,
                "stop_string": any(string in text for string in stopping.stop_strings),
                "length": budget,
                "context": context,
            }
            reasons.append(next((name for name, holds in causes.items() if holds), None))
        assert reasons == [None] * (len(tokens) - 1) + [reason]


def assert_counts_add_up(case: Case, generation: Generation, outcomes: list[Outcome]) -> None:
    tally, num_rows = generation.tally, len(case.prompts)
    new_tokens = torch.tensor([len(tokens) for tokens in generation.tokens])
    done, accepted, offered, tested, rounds = torch.ones(num_rows, dtype=torch.int64), 0, 0, 0, 0
    for outcome in outcomes:
        active, kept, reached = outcome.active, outcome.num_committed, outcome.num_accepted
        assert torch.equal(active, done < new_tokens)
        assert (kept[~active] == 0).all() and (kept[active] >= 1).all() and (kept <= reached + 1).all()
        assert (reached <= outcome.draft.offered_depth).all()
        done += kept
        rounds += int(active.sum())
        accepted += int(reached[active].sum())
        offered += int(outcome.draft.offered_depth[active].sum())
        tested += int((reached + has_offered_child(outcome.draft, outcome.stop))[active].sum())
    # The device commits tokens after a stop string before the host finds it; the host then removes them.
    stopped = torch.tensor([reason == "stop_string" for reason in generation.finish_reasons])
    assert torch.equal(done[~stopped], new_tokens[~stopped]) and (done >= new_tokens).all()
    counts = tally.counts()
    assert counts["committed"] == int(new_tokens.sum()) - num_rows
    assert (counts["rounds"], counts["accepted"], counts["tested"]) == (rounds, accepted, tested)
    assert sum(counts["passes_by_nodes"]) == len(outcomes)
    assert accepted <= tested <= offered and counts["committed"] <= accepted + rounds
    if not case.stopping.stop_strings:  # a round commits one more token than it accepts, except at eos
        by_eos = generation.finish_reasons.count("eos")
        assert accepted + rounds - by_eos <= counts["committed"]
    for name, value in tally.metrics().items():
        if value is not None and name != "alpha/check":
            assert 0 <= value <= (1 + 1e-9 if name.startswith("alpha") else MAX_GAMMA + 1), (name, value)


def has_offered_child(draft: Draft, row: Tensor) -> Tensor:
    """[B] bool: whether a row of [pending, nodes...] has an offered, hence rejected child."""
    return (draft.valid & (draft.parent + 1 == row.unsqueeze(1))).any(1)


# Above temperature 0


@fuzz(
    15,
    few=False,
    case=cases(PER_ROW, models(torch.float64)),
    verifier=st.one_of(st.just(SpeculativeSampling()), LENIENT),
    sampling=DRAWING,
    order=st.randoms(use_true_random=False),
)
def test_rows_do_not_depend_on_their_batch(case: Case, verifier: Verifier, sampling: Sampling, order: Any) -> None:
    assert_rows_are_alone(case, verifier, sampling, order)


@fuzz(
    7,
    case=cases(PER_ROW, models(torch.float64), drafters=BRANCHING),
    sampling=DRAWING,
    order=st.randoms(use_true_random=False),
)
def test_rows_with_trees_do_not_depend_on_their_batch(case: Case, sampling: Sampling, order: Any) -> None:
    assert_rows_are_alone(case, SpeculativeSampling(), sampling, order)


def assert_rows_are_alone(case: Case, verifier: Verifier, sampling: Sampling, order: Any) -> None:
    """Rounding changes one draw in 1e13 for float64 models, one in 1e7 for float32 n-grams."""
    recorder = Recorder(build_drafter(case.drafter, case.model))
    engine = case.engine(recorder, verifier, sampling)
    together = engine.generate(case.prompts, stopping=case.stopping, seeds=case.seeds)
    assert_ends_are_right(case, together)
    assert_counts_add_up(case, together, recorder.outcomes)
    rows = order.sample(case.seeds, order.randint(1, len(case.seeds)))
    for batch in (rows, rows[:1]):
        again = engine.generate([case.prompts[row] for row in batch], stopping=case.stopping, seeds=batch)
        assert again.tokens == [together.tokens[row] for row in batch]
        assert again.finish_reasons == [together.finish_reasons[row] for row in batch]
    if engine.verifier.guarantee is Guarantee.EXACT:
        for tokens, logits in zip(together.tokens, uncached_new(case, together), strict=True):
            assert (sampling.probs(logits).gather(1, torch.tensor(tokens).unsqueeze(1)) > 0).all()


# Dictated acceptance


# Thresholds of draft_exit depend on earlier rounds, which a fresh drafter has not seen.
FORGETFUL = policies(*(name for name in POLICY_NAMES if name != "draft_exit"))


@fuzz(
    2,
    few=False,
    case=cases(FORGETFUL, models(torch.float64, sizes=st.sampled_from(THREE_SIZES))),
    sampling=st.one_of(st.just(GREEDY), DRAWING),
    stops=st.lists(st.lists(st.integers(0, MAX_GAMMA), min_size=1, max_size=5), min_size=1, max_size=6),
    branching=BRANCHING,
)
def test_state_follows_whatever_is_accepted(
    case: Case, sampling: Sampling, stops: list[list[int]], branching: DrafterChoice
) -> None:
    """In every round, drafts equal those of a fresh drafter, and target logits uncached ones."""
    for drafter in (*YAMLS, branching):
        if fits(drafter, case.model):
            assert_state_follows(replace(case, drafter=drafter), sampling, stops)


def assert_state_follows(case: Case, sampling: Sampling, stops: list[list[int]]) -> None:
    recorder, verifier = Recorder(build_drafter(case.drafter, case.model)), Dictated(dictated(stops))
    engine = case.engine(recorder, verifier, sampling)
    engine.generate(case.prompts, stopping=case.stopping, seeds=case.seeds)
    for number, proposed in recorder.proposal_of.items():
        outcome, logits = recorder.outcomes[number], verifier.logits[1 + number]  # prefill's logits come first
        assert_same_offer(proposed.draft, begun_anew(case, proposed, sampling), outcome.active, case.model.vocabulary)
        rows = outcome.active.nonzero().flatten().tolist()
        for (row, place), expected in uncached_nodes(case.target, proposed.committed, outcome.draft, rows).items():
            error = (logits[row, place] - expected).abs().max()
            assert error < 1e-9 * (1 + expected.abs().max())


def uncached_nodes(
    target: Target, committed: list[list[int]], draft: Draft, rows: list[int]
) -> dict[tuple[int, int], Tensor]:
    """[V] logits by row and place in [pending, nodes...], pending and offered nodes; every branch is a text."""
    texts: list[list[int]] = []
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for row in rows:
        tokens, parent, paths = draft.tokens[row].tolist(), draft.parent[row].tolist(), {-1: [-1]}
        for node in draft.valid[row].nonzero().flatten().tolist():
            paths[node] = [*paths[parent[node]], node]
        for node, path in reversed(paths.items()):  # leaves first: their texts hold the nodes above
            if (row, node + 1) not in found:
                end = len(committed[row]) - 1
                found |= {(row, above + 1): (len(texts), end + depth) for depth, above in enumerate(path)}
                texts.append(committed[row] + [tokens[above] for above in path[1:]])
    logits = uncached(target, texts)
    return {place: logits[text, position] for place, (text, position) in found.items()}


def dictated(stops: list[list[int]]) -> Pattern:
    """Acceptance depth by round and row; both lists repeat."""

    def depth(number: int, deepest: Tensor) -> Tensor:
        depths = stops[number % len(stops)]
        return torch.minimum(deepest, torch.tensor([depths[row % len(depths)] for row in range(len(deepest))]))

    return depth


def begun_anew(case: Case, earlier: Proposal, sampling: Sampling) -> Draft:
    """Draft of a fresh drafter of the same kind, with the committed tokens as prompt."""
    texts, pending = [row[:-1] for row in earlier.committed], [row[-1] for row in earlier.committed]
    engine = case.engine(build_drafter(case.drafter, case.model, clone=True), Dictated(first=pending), sampling)
    begun = engine.begin(
        texts,
        stopping=Stopping(max_new_tokens=2 + MAX_GAMMA),
        seeds=case.seeds,
        detailed=False,
        stopwatch=Stopwatch(case.target.device),
    )
    should_continue = engine.gamma_policy.should_continue
    return proposal(engine.drafter, begun.sequences, earlier.gamma, earlier.uniforms, should_continue)


def assert_same_offer(got: Draft, expected: Draft, active: Tensor, width: int) -> None:
    """Compare the nodes and distributions offered to active rows.

    A policy may end a batch's draft sooner.
    """
    both = min(got.num_nodes, expected.num_nodes)
    valid = got.valid[active, :both]
    assert torch.equal(got.parent[active, :both], expected.parent[active, :both])
    assert torch.equal(valid, expected.valid[active, :both])
    assert not any(draft.valid[active, both:].any() for draft in (got, expected))
    assert torch.equal(*(draft.tokens[active, :both][valid] for draft in (got, expected)))
    if valid.any():
        distributions = [draft.dense_probs(width)[active, :both][valid] for draft in (got, expected)]
        assert (distributions[0] - distributions[1]).abs().max() < 1e-6
