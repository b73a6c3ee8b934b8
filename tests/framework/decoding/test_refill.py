"""Continuous batching: a prompt decodes to the same tokens in a row that another prompt has left as alone."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from drafters.small_transformer import SmallTransformer
from drafters.suffix_lookup import SuffixLookup
from experiments.proof.tiny_drafters import NAMES
from framework.conformance.tiny_models import tiny_cached_lm, tiny_target
from framework.core.drafter import Drafter
from framework.core.sampling import Sampling
from framework.core.uniforms import ROUNDS_PER_BLOCK, RoundUniforms, Uniforms
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping
from framework.gamma_policies.draft_exit import DraftExit
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.metrics.graph_counts import counted_graphs
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from tests.framework.decoding.test_engine import GREEDY, RAGGED, build_drafter
from tests.support.drafter_kinds import every_drafter

DRAWN = Sampling(temperature=1.0)
REFUSED = (
    "online_bandit",
    "online_medusa",
    "online_small_transformer",
    "remote",
)  # they learn, or run in another process
REFILLED = [name for name in NAMES if name not in REFUSED]
PROMPTS = [*RAGGED, [3, 4, 3, 4], [8], [21, 22] * 5, [5, 6, 7, 8, 5, 6]]
SEEDS = list(range(len(PROMPTS)))
STOPPING = Stopping(max_new_tokens=24, eos_ids=(0, 13, 26, 39))  # rows end after one token, after many, at the budget
NUM_ROWS = 3


@pytest.fixture(scope="module")
def target() -> Target:
    return tiny_target(dtype=torch.float64)


@pytest.fixture(scope="module")
def drafter_of(target) -> Callable[[str], Drafter]:
    return cache(lambda name: build_drafter(name, target))


def engine_of(target: Target, drafter: Drafter, sampling: Sampling, policy=None, **options) -> Engine:
    policy = policy or Fixed(gamma=3)
    return Engine(target=target, drafter=drafter, gamma_policy=policy, sampling=sampling, **options)


def refilled(decoder, prompts=PROMPTS, num_rows: int = NUM_ROWS, **others) -> Generation:
    """A generation in which finished rows take the next prompts."""
    queue = Queue(len(prompts), num_rows)
    return decoder.generate(prompts, stopping=STOPPING, seeds=SEEDS[: len(prompts)], queue=queue, **others)


def alone(decoder, prompts=PROMPTS) -> list[list[int]]:
    """Tokens of every prompt in a generation of its own."""
    return [
        decoder.generate([prompt], stopping=STOPPING, seeds=[seed]).tokens[0]
        for prompt, seed in zip(prompts, SEEDS, strict=False)
    ]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["T=0", "T=1"])
@pytest.mark.parametrize("name", every_drafter(REFILLED))
def test_a_prompt_decodes_as_alone_whenever_it_enters(target, drafter_of, name, sampling):
    decoder = engine_of(target, drafter_of(name), sampling)
    expected, found = alone(decoder), refilled(decoder)
    assert found.tokens == expected
    lengths = sorted(map(len, expected))
    assert lengths[0] == 1 and len(set(lengths)) > 4  # rows are refilled at different rounds
    assert found.finish_reasons == ["eos" if tokens[-1] in STOPPING.eos_ids else "length" for tokens in expected]
    assert found.tally is not None
    assert found.tally.committed == sum(lengths) - len(lengths)


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["T=0", "T=1"])
def test_plain_decoding_too(target, sampling):
    decoder = Autoregressive(target=target, sampling=sampling)
    expected, found = alone(decoder), refilled(decoder)
    assert found.tokens == expected
    assert sum(map(len, expected)) - len(expected) <= NUM_ROWS * found.num_passes


@pytest.mark.slow
def test_one_row_decodes_the_prompts_one_after_another(target, drafter_of):
    decoder = engine_of(target, drafter_of("small_transformer"), DRAWN)
    assert refilled(decoder, num_rows=1).tokens == alone(decoder)


@pytest.mark.slow
def test_a_prompt_may_be_read_in_chunks(drafter_of):
    whole = tiny_target(dtype=torch.float64)
    pieces = Target(
        CachedLM(whole.model.model, vocabulary_size=whole.vocabulary_size, prefill_chunk=4),
        whole.tokenizer, whole.vocabulary_size, whole.fingerprint,
    )  # fmt: skip
    decoders = [engine_of(each, build_drafter("layer_skip", each), DRAWN) for each in (whole, pieces)]
    assert refilled(decoders[1]).tokens == alone(decoders[0])


def test_thresholds_of_a_row_begin_anew(target, drafter_of):
    policy = DraftExit(max_gamma=3, threshold=0.0, alpha_target=1.0, b1=0.5, b2=0.0, eps=0.5)
    decoder = engine_of(target, drafter_of("small_transformer"), DRAWN, policy)
    assert refilled(decoder).tokens == alone(decoder)
    with patch.object(DraftExit, "begin_rows", lambda self, rows: None):
        assert refilled(decoder).tokens != alone(decoder)


@pytest.mark.slow
def test_numbers_by_the_round_of_the_generation_would_change_tokens(target, drafter_of):
    """A planted fault: a row goes on with the round number of the generation, not with its own."""
    honest = Uniforms.begin_rows

    def faulty(self: Uniforms, rows: list[int], seeds: list[int]) -> RoundUniforms:
        first = honest(self, rows, seeds)
        for row in rows:
            self._first_rounds[row] = 0
        begin = (self._num_blocks - 1) * ROUNDS_PER_BLOCK
        self._host_block[:, rows] = self._draw(seeds, [begin] * len(rows), ROUNDS_PER_BLOCK)
        return first

    decoder = engine_of(target, drafter_of("small_transformer"), DRAWN)
    expected = alone(decoder)
    with patch.object(Uniforms, "begin_rows", faulty):
        found = refilled(decoder).tokens
    assert found[:NUM_ROWS] == expected[:NUM_ROWS] and found[NUM_ROWS:] != expected[NUM_ROWS:]


@pytest.mark.slow
def test_rows_are_busy_until_the_queue_is_empty(target, drafter_of):
    """With 8 prompts a row, every row decodes in every round while prompts wait, and in most rounds in all."""
    prompts = [[*PROMPTS[i % len(PROMPTS)], i] for i in range(32)]
    queue, seeds, busy, waiting = Queue(32, 4), list(range(32)), [], []

    def on_round(outcome):
        busy.append(outcome.active.float().mean().item())
        waiting.append(queue.num_waiting > 0)

    decoder = engine_of(target, drafter_of("small_transformer"), DRAWN)
    tally = decoder.generate(prompts, stopping=STOPPING, seeds=seeds, queue=queue, on_round=on_round).tally
    until_empty = [share for share, is_waiting in zip(busy, waiting, strict=True) if is_waiting]
    assert len(until_empty) > 20 and sum(until_empty) / len(until_empty) >= 0.9
    assert tally.num_rounds / (4 * tally.num_passes) == pytest.approx(sum(busy) / len(busy))
    batches = [slice(start, start + 4) for start in range(0, 32, 4)]
    apart = [decoder.generate(prompts[some], stopping=STOPPING, seeds=seeds[some]).tally for some in batches]
    passes_apart = sum(each.num_passes for each in apart)
    assert sum(each.num_rounds for each in apart) == tally.num_rounds  # the same rounds of every prompt ...
    assert tally.num_passes < 0.8 * passes_apart  # ... in fewer passes


@pytest.mark.parametrize("is_plain", [pytest.param(False, marks=pytest.mark.slow), True], ids=["draft", "plain"])
def test_compiled_rounds_go_on_unchanged(is_plain, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
    target = tiny_target(num_hidden_layers=1)
    if is_plain:
        eager, graph = (Autoregressive(target=target, sampling=DRAWN, compiled=mode) for mode in (False, True))
    else:
        drafter = SmallTransformer(target, model=lambda _: tiny_cached_lm(num_hidden_layers=1, seed=2))
        eager, graph = (engine_of(target, drafter, DRAWN, compiled=mode) for mode in (False, True))
    graph.generate(PROMPTS[:2], stopping=STOPPING, seeds=SEEDS[:2])
    with counted_graphs() as graphs:
        found = refilled(graph, PROMPTS[:6], num_rows=2).tokens
    assert found == alone(eager, PROMPTS[:6]) and not graphs.compiled


@pytest.mark.slow
def test_prefills_of_finished_rows_are_compiled(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
    prompts = [(prompt * 20)[: 20 + row] for row, prompt in enumerate(PROMPTS[:6])]
    target = tiny_target(num_hidden_layers=1)
    target.model.compile_prefill = True
    eager, graph = (Autoregressive(target=target, sampling=DRAWN, compiled=mode) for mode in (False, True))
    with counted_graphs() as graphs:
        assert refilled(graph, prompts, num_rows=2).tokens == alone(eager, prompts)
    assert graphs.compiled == 3, "a step, and prefills of both rows and of one"


def test_what_cannot_refill_is_refused_in_one_line(target):
    remembering = SuffixLookup(target, min_match=1, factor=None, history=5, corpus=None)
    for drafter in (build_drafter("online_small_transformer", target), remembering):
        refused = f"refill is true, and {type(drafter).__name__} cannot begin other prompts in single rows"
        with pytest.raises(ValueError, match=f"{refused}.*; allowed: false, or another drafter"):
            refilled(engine_of(target, drafter, GREEDY))
    for family, reason in (("mamba2", "has recurrent layers"), ("t5", "reads a source per row")):
        other = tiny_target(family)
        decoder = Autoregressive(target=other, sampling=GREEDY)
        with pytest.raises(ValueError, match=f"refill is true, and .* {reason}; allowed: false"):
            refilled(decoder)
        assert refilled(decoder, PROMPTS[:3]).tokens == alone(decoder, PROMPTS[:3])  # no prompt waits


def test_a_queue_gives_every_prompt_to_one_row():
    queue = Queue(5, 2)
    assert queue.in_row == [0, 1] and queue.num_waiting == 3
    assert queue.take(1) and queue.take(0) and queue.take(1) and not queue.take(0)
    assert queue.in_row == [3, 4] and not queue.num_waiting
    assert Queue(2, 8).in_row == Queue(2).in_row == [0, 1]
    with pytest.raises(ValueError, match="batch_size is 0; allowed: a whole number >= 1"):
        Queue(5, 0)


def test_results_are_in_the_order_of_the_prompts(target):
    """Prompts end in another order than they begin."""
    decoder = Autoregressive(target=target, sampling=DRAWN)
    ended: list[int] = []

    class Noting(Queue):
        def finish(self, number: int) -> None:
            ended.append(number)

    found = decoder.generate(PROMPTS, stopping=STOPPING, seeds=SEEDS, queue=Noting(len(PROMPTS), NUM_ROWS))
    assert sorted(ended) == SEEDS != ended and found.tokens == alone(decoder)


def test_a_prompt_that_is_too_long_is_refused_before_any_is_decoded(target):
    decoder, calls = Autoregressive(target=target, sampling=GREEDY), SimpleNamespace(number=0)
    honest = CachedLM.forward

    def counted(self, *arguments, **others):
        calls.number += 1
        return honest(self, *arguments, **others)

    prompts = [*PROMPTS[:4], [5] * target.model.context]
    with patch.object(CachedLM, "forward", counted), pytest.raises(ValueError, match="prompt 4 has 128 tokens"):
        refilled(decoder, prompts)
    assert not calls.number
