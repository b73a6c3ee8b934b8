"""Compiled rounds give the tokens of the eager loop, for every drafter and for what changes between rounds."""

import pytest
import torch

from experiments.tiny_drafters import NAMES, tiny_factory
from framework import compiled, fused_attention
from framework.autoregressive import Autoregressive
from framework.cached_lm import CachedLM
from framework.engine import Engine
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.fixed import Fixed
from framework.sampling import Sampling
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target
from framework.tiny_models import tiny_model, tiny_target

RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
PROGRAMS = [name for name in NAMES if not name.startswith("online_")]  # a drafter that learns is refused
GREEDY, DRAWN = Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9)


@pytest.fixture(autouse=True)
def quickly(request, monkeypatch):
    """What is traced is what is compiled; machine code is made of it where a test asks for that."""
    torch._dynamo.reset()
    if "machine_code" not in request.fixturenames:
        monkeypatch.setitem(compiled.BACKENDS, "cpu", "eager")


@pytest.fixture
def machine_code():
    """For slow tests only: a program takes seconds."""


def engines(target: Target, name: str, sampling: Sampling, policy) -> list[Engine]:
    """An eager and a compiled one, around one drafter."""
    drafter = tiny_factory(name, target.vocabulary_size)(target=target)
    return [
        Engine(target=target, drafter=drafter, gamma_policy=policy, sampling=sampling, compiled=mode)
        for mode in (False, True)
    ]


def tokens_of(decoder, prompts, max_new_tokens: int = 12, **stops) -> list[list[int]]:
    stopping = Stopping(max_new_tokens=max_new_tokens, **stops)
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tokens


@pytest.mark.parametrize(
    "prompts, sampling",
    [
        pytest.param(RAGGED, DRAWN, id="drawn"),
        pytest.param([RAGGED[0]], DRAWN, id="one", marks=pytest.mark.slow),
        pytest.param(RAGGED, GREEDY, id="ragged", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_drafter_gives_the_tokens_of_the_eager_loop(name, prompts, sampling):
    eager, program = engines(tiny_target(), name, sampling, Fixed(gamma=3))
    assert tokens_of(program, prompts) == tokens_of(eager, prompts)


@pytest.mark.parametrize("prompts, sampling", [([RAGGED[0]], DRAWN), (RAGGED, GREEDY)], ids=["one", "ragged"])
def test_plain_decoding_too(prompts, sampling):
    eager, program = (Autoregressive(target=tiny_target(), sampling=sampling, compiled=mode) for mode in (False, True))
    assert tokens_of(program, prompts) == tokens_of(eager, prompts)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["small_transformer", "medusa", "prompt_lookup", "ngram"])
def test_machine_code_gives_them_as_well(name, sampling, machine_code):
    eager, program = engines(tiny_target(), name, sampling, Fixed(gamma=2))
    assert tokens_of(program, RAGGED) == tokens_of(eager, RAGGED)


@pytest.mark.slow
def test_like_models_keep_their_weights_apart(machine_code):
    """The compiler's cache on the disk must not give a model the program of another one of the same shapes."""
    found = []
    for seed in (0, 1):
        torch._dynamo.reset()
        eager, program = engines(tiny_target(seed=seed), "prompt_lookup", GREEDY, Fixed(gamma=2))
        found.append(tokens_of(program, RAGGED))
        assert found[-1] == tokens_of(eager, RAGGED)
    assert found[0] != found[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_transformer", "transformer_tree", "medusa", "layer_skip"])
def test_programs_write_keys_where_they_lie(name, machine_code):
    """A round in a long text makes nothing as large as what one layer keeps of it."""
    _, program = engines(tiny_target(context=9000), name, GREEDY, Fixed(gamma=3))
    stopping, seeds, stopwatch = Stopping(max_new_tokens=8000), [0, 1, 2], Stopwatch(torch.device("cpu"))
    decoding = program.begin(RAGGED, stopping=stopping, seeds=seeds, detailed=False, stopwatch=stopwatch)
    program.round(decoding)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        program.round(decoding)
    made = [event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    kept = program.target.model._slots.cache.layers[0].keys.nbytes
    assert 0 < max(made) < kept


class Alternating(Fixed):
    """Gammas in turn, none among them."""

    def __init__(self):
        super().__init__(gamma=3)
        self.begin()

    def begin(self):
        self._turn = iter([2, 0, 0, 3, 1, 0] * 20)

    def next_gamma(self):
        return next(self._turn)


def test_rounds_without_a_draft_and_changing_gammas():
    eager, program = engines(tiny_target(), "small_transformer", GREEDY, Alternating())
    assert tokens_of(program, RAGGED, 20) == tokens_of(eager, RAGGED, 20)


def test_few_programs_serve_any_number_of_rounds_without_a_draft(monkeypatch):
    made = []

    def counting(graph, examples):
        made.append(graph)
        return graph.forward

    monkeypatch.setitem(compiled.BACKENDS, "cpu", counting)
    policy = Alternating()
    policy.begin = lambda: setattr(policy, "_turn", iter(([0] * 9 + [2]) * 9))
    eager, program = engines(tiny_target(), "small_transformer", GREEDY, policy)
    assert tokens_of(program, [RAGGED[0]], 30) == tokens_of(eager, [RAGGED[0]], 30)
    assert len(made) <= 10, "a program for every such round would be more than twice as many"


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", ["medusa", "transformer_tree"])
def test_a_policy_that_ends_chains_leaves_trees_whole(name, sampling):
    policy = ConfidenceThreshold(max_gamma=3, threshold=0.5)
    eager, program = engines(tiny_target(), name, sampling, policy)
    stopping, seeds = Stopping(max_new_tokens=20), list(range(len(RAGGED)))
    found = [each.generate(RAGGED, stopping=stopping, seeds=seeds) for each in (eager, program)]
    assert found[0].tokens == found[1].tokens
    assert found[0].tally.num_rounds == found[1].tally.num_rounds  # a draft that became a chain would take more


def test_a_drafter_keeps_its_acceptance():
    """Equal tokens would not show that a compiled drafter sees the wrong slots: its drafts would only be poor."""
    eager, program = engines(tiny_target(), "small_transformer", GREEDY, Fixed(gamma=3))
    tallies = [
        each.generate(RAGGED, stopping=Stopping(max_new_tokens=40), seeds=[0, 1, 2]).tally for each in (eager, program)
    ]
    assert tallies[0].accepted.tolist() == tallies[1].accepted.tolist()


@pytest.mark.parametrize("name", ["small_transformer", "medusa"])
def test_temperatures_and_thresholds_share_their_program(name, monkeypatch):
    """They come as tensors, so that the compiler's cache on the disk knows the program of another temperature."""
    target, graphs = tiny_target(), []
    monkeypatch.setitem(compiled.BACKENDS, "cpu", lambda graph, examples: graphs.append(graph.code) or graph.forward)
    settings = [Sampling(temperature=0.7, top_p=0.9, min_p=0.01), Sampling(temperature=1.3, top_p=0.5, min_p=0.1)]
    for sampling in [*settings, Sampling(temperature=0)]:
        _, program = engines(target, name, sampling, Fixed(gamma=3))
        tokens_of(program, RAGGED)
    assert len(graphs) == 3 and graphs[0] == graphs[1] != graphs[2]


@pytest.mark.parametrize(
    "prompts",
    [pytest.param([RAGGED[0]], id="one", marks=pytest.mark.slow), pytest.param(RAGGED, id="ragged")],
)
@pytest.mark.parametrize("name", ["small_transformer", "medusa", "prompt_lookup"])
def test_one_program_serves_rows_of_every_length(name, prompts, monkeypatch):
    """How far rows reach is an input: a number of the program would make a program a round."""
    graphs = []
    monkeypatch.setitem(compiled.BACKENDS, "cpu", lambda graph, examples: graphs.append(graph) or graph.forward)
    eager, program = engines(tiny_target(), name, GREEDY, Fixed(gamma=3))
    assert tokens_of(program, prompts, 30) == tokens_of(eager, prompts, 30)
    assert tokens_of(program, [[4] * len(prompt) for prompt in prompts], 30)
    # Prompt lookup has a program for rounds in which it finds nothing.
    assert len(graphs) == (2 if name == "prompt_lookup" else 1)


def test_drafts_that_the_policy_ends_are_drafted_outside():
    policy = ConfidenceThreshold(max_gamma=4, threshold=0.05)
    eager, program = engines(tiny_target(), "small_transformer", GREEDY, policy)
    assert tokens_of(program, RAGGED) == tokens_of(eager, RAGGED)


def test_end_of_text_and_other_batches():
    """The same programs serve new prompts; a batch of other size gets its own."""
    eager, program = engines(tiny_target(), "small_transformer", GREEDY, Fixed(gamma=3))
    ends = tokens_of(eager, RAGGED)[0][4]
    for prompts in (RAGGED, [[7] * 9, [3, 4], [30]], [[8, 9]], RAGGED):
        assert tokens_of(program, prompts, eos_ids=(ends,)) == tokens_of(eager, prompts, eos_ids=(ends,))


def test_detailed_counts_are_taken_call_by_call():
    eager, program = engines(tiny_target(), "ngram", DRAWN, Fixed(gamma=3))
    stopping = Stopping(max_new_tokens=12)
    ours, theirs = (
        each.generate(RAGGED, stopping=stopping, seeds=[0, 1, 2], detailed=True) for each in (program, eager)
    )
    assert ours.tally.metrics() == theirs.tally.metrics()


@pytest.mark.parametrize("as_program", [False, True], ids=["eager", "program"])
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 1), (2, 1), (2, 5), (2, 20)])
def test_fused_attention_is_sdpa(num_rows, num_tokens, as_program):
    """With heads that share keys: sums in a program for few tokens, and one call for more and elsewhere."""
    fused_attention.register()
    starts = torch.tensor([6, 3])[:num_rows]
    tokens = torch.arange(num_rows * num_tokens).reshape(num_rows, -1)
    found = []
    for attention in ("sdpa", fused_attention.NAME):
        lm = CachedLM(tiny_model(attention=attention), vocabulary_size=50)
        lm.begin(num_rows, 32)
        lm.forward(torch.arange(6 * num_rows).reshape(num_rows, 6), None, visible=6)

        def read(tokens, starts, lm=lm):
            return lm.forward(tokens, starts, visible=6 + num_tokens)

        program = compiled.Compiled(read, lm.device)
        with torch.no_grad():
            found.append(program(0, tokens, starts) if as_program else read(tokens, starts))
    torch.testing.assert_close(*found, rtol=0, atol=2e-6)


def test_fused_attention_takes_a_mask_of_bool(monkeypatch):
    """Added to scores as 0 and 1 it would hide nothing."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # sums are taken in programs alone
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, length, 8, generator=generator) for length in (1, 6, 6))
    seen = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])[:, None, None]
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    layer = torch.nn.Module()
    of_bool, of_added = (fused_attention.fused_attention(layer, query, key, value, mask)[0] for mask in (seen, added))
    torch.testing.assert_close(of_bool, of_added, rtol=0, atol=2e-6)
