"""Projected speedups: equal to the theory where it applies, with the right limits."""

import pytest

from experiments.projection.acceptance import Acceptance
from experiments.projection.hardware import Hardware
from experiments.projection.model_size import ModelSize
from experiments.projection.roofline import Roofline
from experiments.projection.speedups import MOST_ROWS, Decoding
from experiments.results.record import Record
from framework.metrics.theory import expected_tokens, optimal_gamma, speedup

MACHINE = Hardware("machine", "here", gigabytes=0.001, gigabytes_per_second=1.0, teraflops={"float32": 0.01})
TARGET = ModelSize("target", parameters=100_000, read=100_000, layers=4, heads=4, kv_heads=2, head_dim=8)
DRAFT = ModelSize("draft", parameters=10_000, read=10_000, layers=1, heads=2, kv_heads=1, head_dim=8)
GAMMAS = range(9)


def decoding(alpha=0.8, *, draft=DRAFT, gammas=GAMMAS, acceptance=None) -> Decoding:
    acceptance = acceptance or Acceptance("given", alpha)
    return Decoding(Roofline(MACHINE, "float32"), TARGET, draft, acceptance, list(gammas))


def test_one_row_by_hand():
    # Weights: 400 µs of reading against 100 µs of arithmetic for five tokens; keys of the five tokens read: see below.
    at_4 = decoding().at_gamma(4, batch=1, context=0)
    one = 100_000 * 4e-9 + 1 * 4 * 2 * 2 * 8 * 4e-9
    five = 100_000 * 4e-9 + 5 * 4 * 2 * 2 * 8 * 4e-9
    draft = 10_000 * 4e-9 + 1 * 1 * 2 * 1 * 8 * 4e-9
    assert at_4.one_row_ms == pytest.approx(1000 * one)
    assert (at_4.v, at_4.c, at_4.d) == pytest.approx((five / one, draft / one, 4 * draft / one))
    assert at_4.tau == expected_tokens(0.8, 4)
    assert at_4.speedup == pytest.approx(expected_tokens(0.8, 4) * one / (five + 4 * draft))
    assert at_4.theorem == speedup(0.8, 4, draft / one)
    assert at_4.tokens_per_second == pytest.approx(expected_tokens(0.8, 4) / (five + 4 * draft))


@pytest.mark.parametrize("batch", [1, 20, 300])
@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_the_chosen_gamma_is_the_optimal_one_of_the_theory(alpha, batch):
    many = decoding(alpha)
    times = [many.at_gamma(gamma, batch=batch, context=100).v for gamma in GAMMAS]
    c = many.at_gamma(1, batch=batch, context=100).c
    assert many.project(batch=batch, context=100).gamma == optimal_gamma(alpha, c, 8, times)


@pytest.mark.parametrize("batch", [1, 64, 4096])
@pytest.mark.parametrize("context", [0, 10_000])
def test_drafts_that_are_never_accepted_never_pay(batch, context):
    never = decoding(0)
    assert all(never.at_gamma(gamma, batch=batch, context=context).speedup <= 1 for gamma in GAMMAS)
    assert (best := never.project(batch=batch, context=context)).gamma == 0 and best.speedup == 1
    assert never.break_even_batch(context) == 1


def test_wide_batches_are_bound_by_arithmetic_and_drafts_do_not_pay():
    wide = decoding(0.95).at_gamma(4, batch=10**7, context=0)
    # All products: v is 5 up to attention, and a draft step a tenth.
    assert wide.v == pytest.approx(5, rel=0.05) and wide.bound == "arithmetic" and wide.speedup < 1
    assert decoding(0.95).project(batch=10**7, context=0).gamma == 0


def test_long_contexts_are_bound_by_keys_and_values():
    far = decoding(0.8).at_gamma(4, batch=1, context=10**8)
    assert far.v == pytest.approx(1, rel=1e-4) and far.bound == "KV cache"
    assert far.c == pytest.approx(1 * 1 * 8 / (4 * 2 * 8), rel=1e-4)  # layers, heads and numbers of keys
    assert far.speedup == pytest.approx(expected_tokens(0.8, 4) / (1 + 4 / 8), rel=1e-4)


def test_the_break_even_batch_is_the_first_in_which_no_draft_pays():
    many = decoding(0.6)
    first = many.break_even_batch(10)
    assert first is not None and 2 < first < MOST_ROWS
    assert many.project(batch=first - 1, context=10).speedup > 1
    assert many.project(batch=first, context=10).speedup == 1
    assert decoding(0.8, draft=None).break_even_batch(10**8) is None  # keys are read once, whatever is drafted


def test_memory_bounds_the_batch():
    # 1 MB, 440 kB of weights; 4 x 2 x 2 x 8 x 4 and 1 x 1 x 2 x 8 x 4 bytes per token.
    many = decoding()
    assert many.largest_batch(100) == int((1e6 - 4 * 110_000) / (100 * (512 + 64)))
    assert many.project(batch=9, context=100).fits and not many.project(batch=10, context=100).fits


def record(drafter="prompt_lookup", **others) -> Record:
    rounds = [[4, 0, 0], [0, 0, 0], [2, 1, 3]]  # offered 0 in 4 rounds; 2 in 6, of which 0, 1, 2 were accepted
    metrics = {"alpha/overlap": 0.7, "nodes/mean": 1.2, "gamma/mean": 1.2, "c": 0.01, **others}
    return Record(point={"drafter": drafter}, metrics=metrics, counts={"rounds_by_offered_and_accepted": rounds})


def test_measured_rounds_are_cut_to_a_smaller_gamma():
    measured = Acceptance.of_record("measured", record())
    assert (measured.most, measured.alpha, measured.has_draft_model) == (2, 0.7, False)
    assert [measured.tau(gamma) for gamma in (0, 1, 2)] == pytest.approx([1, 1 + 4 / 10, 1 + 7 / 10])
    assert measured.offered(2) == {0: 0.4, 2: 0.6} and measured.offered(1) == {0: 0.4, 1: 0.6}


def test_rounds_without_a_draft_cost_a_plain_pass_and_no_gamma_beyond_the_measured_is_chosen():
    measured = decoding(draft=None, acceptance=Acceptance.of_record("measured", record()))
    whole = decoding(0.7, draft=None)
    at_2, always = (each.at_gamma(2, batch=300, context=0) for each in (measured, whole))
    assert at_2.v == pytest.approx(0.4 + 0.6 * always.v) and at_2.d == 0
    assert measured.project(batch=1, context=0).gamma == 2


@pytest.mark.parametrize(("wrong", "says"), [
    (record(**{"nodes/mean": 3.0}), "drafts trees"),
    (record("layer_skip", c=0.3), "parts of its own"),
    (record(**{"alpha/overlap": None}), "no counts"),
])  # fmt: skip
def test_acceptance_of_other_drafts_is_refused(wrong, says):
    with pytest.raises(ValueError, match=f"that one .*{says}"):
        Acceptance.of_record("that one", wrong)
