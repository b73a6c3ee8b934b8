"""Compiled rounds as a GPU compiles them, traced on the CPU: CUDA graphs can capture them."""

from dataclasses import dataclass

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import tiny_target
from framework.core import fixed_buffer
from framework.core.sampling import Sampling
from framework.decoding import autoregressive, compiled_round, prefill
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.generation import Generation
from framework.decoding.refill import Queue
from framework.decoding.round_summary import HostCopy
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.kernels.compiled_graphs import Compiled
from framework.models.cached_lm import CachedLM
from framework.models.target import Target
from tests.support.drafter_kinds import KINDS
from tests.support.slow_cases import mostly_slow

RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
SAMPLING = Sampling(temperature=0.8, top_p=0.9)
# One drafter of a kind; learning ones are refused. Drafts that come from the host are inputs of a graph, which
# prompt_lookup (chosen) and ngram (drawn) stand for.
DRAFTERS = [name for name in (*KINDS, "hierarchical") if not name.startswith("online_")]
# Drafters that skip or read several layers.
TWO_LAYERS = ("layer_skip", "eagle3")


@dataclass(frozen=True)
class Traced:
    """A traced graph: number of outputs, inputs mutated and marked as fixed, addresses of mutated ones in all calls."""

    num_outputs: int
    mutated: frozenset[int]
    fixed: frozenset[int]
    addresses: set[tuple[int, ...]]


@pytest.fixture
def traced(monkeypatch) -> list[Traced]:
    """Graphs traced from now on, as on a GPU.

    Weights are inputs, passes see all slots, buffers are marked, rounds are queued, and each overwrites the outputs of
    the one before.
    """
    torch._dynamo.reset()
    graphs: list[Traced] = []

    def record(graph, examples):
        meta = TracingContext.get().fw_metadata
        mutated = frozenset(number for number, given in enumerate(meta.input_info) if given.mutates_data)
        graphs.append(Traced(meta.num_outputs, mutated, frozenset(meta.static_input_indices), addresses := set()))

        outputs = []

        def run(arguments):
            addresses.add(tuple(arguments[number].data_ptr() for number in sorted(mutated)))
            results = graph.forward(*arguments)
            outputs[:] = outputs or [each.clone() for each in results]
            return [output.copy_(each) for output, each in zip(outputs, results, strict=True)]

        return make_boxed_func(lambda *arguments: run(arguments))

    monkeypatch.setattr(fixed_buffer, "UNMARKED", ())
    for module in (compiled_round, autoregressive):
        monkeypatch.setattr(module, "longest_as_input", lambda sequences: sequences.tokens.shape[1])
        monkeypatch.setattr(module, "runs_later", lambda device: True)
    monkeypatch.setattr(compiled_graphs, "packs_weights", lambda device: False)
    monkeypatch.setattr(prefill, "LEAST_ON_CPU", prefill.LEAST_WIDTH)
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cuda", aot_autograd(fw_compiler=record))
    return graphs


def tokens_of(decoder, prompts=RAGGED, **stops) -> list[list[int]]:
    return generated(decoder, prompts, **stops).tokens


def generated(decoder, prompts=RAGGED, queue=None, **stops) -> Generation:
    stopping, seeds = Stopping(max_new_tokens=9, **stops), list(range(len(prompts)))
    return decoder.generate(prompts, stopping=stopping, seeds=seeds, queue=queue and Queue(len(prompts), queue))


def decoders(target: Target, name: str) -> list:
    """An eager decoder and a compiled one."""
    if name == "baseline":
        return [Autoregressive(target=target, sampling=SAMPLING, compiled=mode) for mode in (False, True)]
    drafter = tiny_factory(name, target.vocabulary_size)(target=target)
    return [
        Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=2), sampling=SAMPLING, compiled=mode)
        for mode in (False, True)
    ]


@pytest.mark.parametrize("name", mostly_slow(["baseline", *DRAFTERS], fast=["baseline"]))
def test_a_round_updates_fixed_buffers_and_returns_its_summary(name, traced):
    """Inductor skips CUDA graphs for inputs mutated at changing addresses; the next replay overwrites an output."""
    target = tiny_target(num_hidden_layers=2 if name in TWO_LAYERS else 1)  # one is half the tracing
    eager, graph = decoders(target, name)
    sizes = (3, 1, 3) if name in ("baseline", "medusa") else (3, 3)  # tracing takes most of the time
    expected = {number: tokens_of(eager, RAGGED[:number]) for number in set(sizes)}
    for number in sizes:
        assert tokens_of(graph, RAGGED[:number]) == expected[number]
    assert len(set(sizes)) <= len(traced) <= 6, "fewer than batch sizes, or more than one for each backlog"
    for each in traced:
        assert each.num_outputs == 1, "only the summary"
        assert each.mutated and each.mutated <= each.fixed
        assert len(each.addresses) == 1, "recorded again in every generation"


@pytest.mark.parametrize("name", mostly_slow(["baseline", "medusa"], fast=["baseline"]))
def test_rounds_are_queued_unless_the_host_acts_between_them(name, traced, monkeypatch):
    target = tiny_target(num_hidden_layers=1)
    eager, graph = decoders(target, name)
    runs, queued = [], []
    call, copy = Compiled.__call__, HostCopy.__init__
    monkeypatch.setattr(Compiled, "__call__", lambda *given: runs.append(given) or call(*given))
    monkeypatch.setattr(HostCopy, "__init__", lambda *given: queued.append(given) or copy(*given))

    def check(**options) -> tuple[int, int]:
        """Check that the tokens are the eager ones; returns the superfluous rounds, and the queued ones."""
        runs.clear()
        queued.clear()
        compiled_ones, eager_ones = (generated(each, **options) for each in (graph, eager))
        assert compiled_ones.tokens == eager_ones.tokens
        assert compiled_ones.finish_reasons == eager_ones.finish_reasons
        assert compiled_ones.num_passes == eager_ones.num_passes
        return len(runs) - compiled_ones.num_passes, len(queued)

    text = tokens_of(eager, RAGGED[:1])[0]
    superfluous, num_queued = check()
    assert superfluous == 0 and num_queued > 1, "a budget ends exactly"
    superfluous, num_queued = check(prompts=RAGGED[:1], eos_ids=(text[4],))
    assert superfluous == 1 and num_queued > 0, "the host learns too late of an end of text"
    string = target.tokenizer.decode(text[4:5])
    assert check(stop_strings=(string,), tokenizer=target.tokenizer) == (0, 0)
    assert check(prompts=[*RAGGED, *RAGGED], queue=2)[1] == 0


@pytest.mark.slow
def test_flex_attention_is_traced_for_trees(traced, monkeypatch):
    """Its masks, functions of tensors, are built within the graph, once for all layers."""
    monkeypatch.setattr(CachedLM, "refuse_compiling", lambda lm: None)  # a CPU's kernels are not traced here
    eager, graph = decoders(tiny_target(num_hidden_layers=2, attention="flex"), "medusa")
    assert tokens_of(graph, RAGGED) == tokens_of(eager, RAGGED)
    assert traced and all(each.mutated <= each.fixed for each in traced)
    # The summary and, of passes with flex attention, the numbers of the slots written, which nobody reads.
    assert all(each.num_outputs <= 2 for each in traced)
