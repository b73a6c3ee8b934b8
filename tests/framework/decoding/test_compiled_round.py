"""Compiled rounds give the eager loop's tokens, for every drafter and under changes between rounds."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from drafters.small_transformer import SmallTransformer
from experiments.proof.tiny_drafters import NAMES, tiny_factory
from framework.conformance.tiny_models import WITH_ENCODER, tiny_cached_lm, tiny_model, tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.confidence_threshold import ConfidenceThreshold
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.metrics.graph_counts import counted_graphs
from framework.metrics.stopwatch import Stopwatch
from framework.models import attention as fused_attention
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import processors_of
from framework.models.target import Target
from tests.support.drafter_kinds import KINDS

RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
FAST = ("prompt_lookup",)  # compiles the fewest graphs
COMPILED = [name for name in NAMES if not name.startswith("online_")]  # learning drafters are refused
GREEDY, DRAWN = Sampling(temperature=0), Sampling(temperature=0.8, top_p=0.9)

pytestmark = pytest.mark.usefixtures("quickly")


def engines(target: Target, name: str, sampling: Sampling, policy) -> list[Engine]:
    """An eager and a compiled engine with the same drafter."""
    return both_ways(target, tiny_factory(name, target.vocabulary_size)(target=target), sampling, policy)


def small_engines(sampling: Sampling, policy) -> list[Engine]:
    """Both engines with a small transformer; one layer per model halves the tracing time."""
    target = one_layer()
    drafter = SmallTransformer(target, model=lambda _: tiny_cached_lm(num_hidden_layers=1, seed=2))
    return both_ways(target, drafter, sampling, policy)


def one_layer() -> Target:
    return tiny_target(num_hidden_layers=1)


def both_ways(target: Target, drafter, sampling: Sampling, policy) -> list[Engine]:
    return [
        Engine(target=target, drafter=drafter, gamma_policy=policy, sampling=sampling, compiled=mode)
        for mode in (False, True)
    ]


def tokens_of(decoder, prompts, max_new_tokens: int = 12, **stops) -> list[list[int]]:
    stopping = Stopping(max_new_tokens=max_new_tokens, **stops)
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tokens


def usual_first(name: str) -> list:
    """Cases of a drafter: FAST drafters' drawn tokens are fast tests, all others slow ones.

    Greedy tokens show the target's part only, which is that of one of KINDS.
    """
    slow = pytest.mark.slow
    drawn = pytest.param(name, RAGGED, DRAWN, id=f"{name}-drawn", marks=() if name in FAST else slow)
    if name not in KINDS:
        return [drawn]
    return [
        drawn,
        pytest.param(name, RAGGED[:1], GREEDY, id=f"{name}-one", marks=slow),
    ]


@pytest.mark.parametrize(("name", "prompts", "sampling"), [case for name in COMPILED for case in usual_first(name)])
def test_every_drafter_gives_the_tokens_of_the_eager_loop(name, prompts, sampling):
    eager, graph = engines(tiny_target(), name, sampling, Fixed(gamma=2))
    assert tokens_of(graph, prompts) == tokens_of(eager, prompts)


@pytest.mark.parametrize(
    "family", [name if name == "t5" else pytest.param(name, marks=pytest.mark.slow) for name in WITH_ENCODER]
)
def test_a_graph_serves_sources_of_any_length(family):
    target = tiny_target(family, num_hidden_layers=1)
    target.model.model.set_attn_implementation(fused_attention.FUSED)
    eager, graph = engines(target, FAST[0], DRAWN, Fixed(gamma=2))
    times = 100 if family.endswith("t5") else 9  # others have small tables of positions
    sources = [RAGGED[:1], [RAGGED[0] * times], [RAGGED[2] * 3], RAGGED[:1]]
    expected = [tokens_of(eager, source) for source in sources]
    assert family == "mt5" or expected[1] != expected[2], "only mt5's tokens do not depend on the source"
    assert tokens_of(graph, sources[0]) == expected[0]
    with counted_graphs() as graphs:
        assert [tokens_of(graph, source) for source in sources] == expected
    assert not graphs.compiled


@pytest.mark.parametrize("prompts, sampling", [([RAGGED[0]], DRAWN), (RAGGED, GREEDY)], ids=["one", "ragged"])
def test_plain_decoding_too(prompts, sampling):
    eager, graph = (Autoregressive(target=tiny_target(), sampling=sampling, compiled=mode) for mode in (False, True))
    assert tokens_of(graph, prompts) == tokens_of(eager, prompts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        pytest.param("medusa", GREEDY, id="medusa-greedy"),
        pytest.param("small_transformer", DRAWN, id="small_transformer-drawn"),
        pytest.param("prompt_lookup", DRAWN, id="prompt_lookup-drawn"),  # greedy: in the next test
    ],
)
def test_machine_code_gives_them_as_well(name, sampling, machine_code):
    target, options = one_layer(), {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2}
    processors = processors_of(target.model.model, options, vocabulary_size=target.vocabulary_size)
    eager, graph = engines(replace(target, processors=processors), name, sampling, Fixed(gamma=2))
    assert tokens_of(graph, RAGGED) == tokens_of(eager, RAGGED)


@pytest.mark.slow
def test_like_models_keep_their_weights_apart(machine_code):
    """A model gets the on-disk graph of another model of equal shapes, and computes with its own weights."""
    found = []
    for seed in (0, 1):
        torch._dynamo.reset()
        counters.clear()
        eager, graph = engines(tiny_target(seed=seed, num_hidden_layers=1), "prompt_lookup", GREEDY, Fixed(gamma=2))
        found.append(tokens_of(graph, RAGGED))
        assert found[-1] == tokens_of(eager, RAGGED)
    assert found[0] != found[1]
    assert counters["aot_autograd"]["autograd_cache_hit"] >= 1 and not counters["inductor"]["fxgraph_cache_miss"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer_tree"])
def test_compiled_graphs_write_keys_where_they_lie(name, machine_code):
    """A round in a long text allocates no tensor as large as one layer's keys, or as the buffer of tokens."""
    target = tiny_target(context=9000, num_hidden_layers=1)
    _, graph = engines(target, name, GREEDY, Fixed(gamma=2))
    stopping, seeds, stopwatch = Stopping(max_new_tokens=8000), [0, 1, 2], Stopwatch(torch.device("cpu"))
    decoding = graph.begin(RAGGED, stopping=stopping, seeds=seeds, detailed=False, stopwatch=stopwatch)
    graph.round(decoding)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        graph.round(decoding)
    made = [event.nbytes() for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    kept = graph.target.model._slots.cache.layers[0].keys, decoding.sequences.tokens
    assert 0 < max(made) < min(tensor.nbytes for tensor in kept)


class Alternating(Fixed):
    """Changing gammas, some of them 0, at times in a long row."""

    def __init__(self):
        super().__init__(gamma=2)
        self.begin()

    def begin(self):
        self._turn = iter([2, 0, 0, 1, 0, 0, 0, 0, 0] * 9)

    def next_gamma(self):
        return next(self._turn)


@pytest.mark.slow
def test_few_compiled_graphs_serve_changing_gammas_and_any_number_of_rounds_without_a_draft(monkeypatch):
    made = []

    def counting(graph, examples):
        made.append(graph)
        return graph.forward

    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", counting)
    policy = Alternating()
    policy.begin = lambda: setattr(policy, "_turn", iter(([0] * 9 + [2]) * 9))
    eager, graph = small_engines(GREEDY, policy)
    assert tokens_of(graph, [RAGGED[0]], 30) == tokens_of(eager, [RAGGED[0]], 30)
    assert len(made) == 2, "a graph for rounds without a draft, and one for drafts after any number of them"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["medusa", "transformer_tree"])
def test_a_policy_that_ends_chains_leaves_trees_whole(name):
    policy = ConfidenceThreshold(max_gamma=3, threshold=0.5)
    eager, graph = engines(one_layer(), name, DRAWN, policy)
    stopping, seeds = Stopping(max_new_tokens=20), list(range(len(RAGGED)))
    found = [each.generate(RAGGED, stopping=stopping, seeds=seeds) for each in (eager, graph)]
    assert found[0].tokens == found[1].tokens
    assert found[0].tally.num_rounds == found[1].tally.num_rounds  # a draft reduced to a chain takes more rounds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_transformer", "eagle_tree", "transformer_tree", "hierarchical"])
def test_a_drafter_keeps_its_acceptance(name):
    """Tokens stay equal when a compiled drafter reads wrong slots; acceptance falls."""
    target = tiny_target() if name.startswith("eagle") else one_layer()  # EAGLE-3 reads outputs of several layers
    policy = Alternating()
    both = small_engines(GREEDY, policy) if name == "small_transformer" else engines(target, name, GREEDY, policy)
    eager, graph = both
    tallies = [
        each.generate(RAGGED, stopping=Stopping(max_new_tokens=40), seeds=[0, 1, 2]).tally for each in (eager, graph)
    ]
    assert tallies[0].accepted.tolist() == tallies[1].accepted.tolist() and tallies[0].accepted.sum() > 0


@pytest.mark.slow
def test_temperatures_and_thresholds_share_their_compiled_graph(monkeypatch):
    """Temperatures and thresholds are tensor inputs, so that on-disk graphs serve all values."""
    graphs = []
    monkeypatch.setitem(
        compiled_graphs.BACKENDS, "cpu", lambda graph, examples: graphs.append(graph.code) or graph.forward
    )
    settings = [Sampling(temperature=0.7, top_p=0.9, min_p=0.01), Sampling(temperature=1.3, top_p=0.5, min_p=0.1)]
    for sampling in [*settings, Sampling(temperature=0)]:
        _, graph = small_engines(sampling, Fixed(gamma=1))
        tokens_of(graph, RAGGED)
    assert len(graphs) == 3 and graphs[0] == graphs[1] != graphs[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_transformer", "medusa", "prompt_lookup"])
def test_one_compiled_graph_serves_rows_of_every_length(name, monkeypatch):
    """Row lengths are inputs: as constants they would cost a compiled graph per round."""
    graphs = []
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", lambda graph, examples: graphs.append(graph) or graph.forward)
    eager, graph = engines(one_layer(), name, GREEDY, Fixed(gamma=2))
    assert tokens_of(graph, RAGGED, 30) == tokens_of(eager, RAGGED, 30)
    assert tokens_of(graph, [[4] * len(prompt) for prompt in RAGGED], 30)
    # Prompt lookup has a second graph, for rounds without a match.
    assert len(graphs) == (2 if name == "prompt_lookup" else 1)


@pytest.mark.slow
def test_drafts_that_the_policy_ends_are_drafted_outside():
    policy = ConfidenceThreshold(max_gamma=4, threshold=0.05)
    eager, graph = small_engines(GREEDY, policy)
    assert tokens_of(graph, RAGGED) == tokens_of(eager, RAGGED)


def test_a_generation_in_inference_mode_may_come_first():
    eager, graph = engines(one_layer(), "prompt_lookup", DRAWN, Fixed(gamma=2))
    with torch.inference_mode():
        assert tokens_of(graph, RAGGED) == tokens_of(eager, RAGGED)
    assert tokens_of(graph, RAGGED[::-1]) == tokens_of(eager, RAGGED[::-1])


def test_end_of_text_and_other_batches(caplog):
    """The same compiled graphs serve new prompts; each batch size has its own, and the log has a line for each."""
    caplog.set_level("INFO", "framework")
    eager, graph = small_engines(GREEDY, Fixed(gamma=2))
    ends = tokens_of(eager, RAGGED)[0][4]
    for prompts in (RAGGED, [[7] * 9, [3, 4], [30]], [[8, 9]], RAGGED):
        assert tokens_of(graph, prompts, eos_ids=(ends,)) == tokens_of(eager, prompts, eos_ids=(ends,))
    assert sum("compiling a round" in message for message in caplog.messages) == 2


def test_detailed_counts_are_taken_call_by_call():
    eager, graph = engines(tiny_target(), "ngram", DRAWN, Fixed(gamma=3))
    stopping = Stopping(max_new_tokens=12)
    ours, theirs = (each.generate(RAGGED, stopping=stopping, seeds=[0, 1, 2], detailed=True) for each in (graph, eager))
    assert ours.tally.metrics() == theirs.tally.metrics()


@pytest.mark.slow
@pytest.mark.parametrize(("num_rows", "num_tokens"), [(1, 1), (2, 1), (2, 5), (2, 20)])
def test_fused_attention_is_sdpa(num_rows, num_tokens):
    """Grouped heads: sums in compiled graphs for few tokens, one sdpa call everywhere else."""
    fused_attention.register()
    starts = torch.tensor([6, 3])[:num_rows]
    tokens = torch.arange(num_rows * num_tokens).reshape(num_rows, -1)

    def logits_of(attention, as_graph):
        lm = CachedLM(tiny_model(attention=attention, num_hidden_layers=1), vocabulary_size=50)
        lm.begin(num_rows, 32)
        lm.forward(torch.arange(6 * num_rows).reshape(num_rows, 6), None, visible=6)

        def read(tokens, starts):
            return lm.forward(tokens, starts, visible=6 + num_tokens).logits

        with torch.no_grad():
            return (
                compiled_graphs.Compiled(read, lm.device, name="a pass")(0, tokens, starts)
                if as_graph
                else read(tokens, starts)
            )

    expected = logits_of("sdpa", False)
    for as_graph in (False, True):
        torch.testing.assert_close(logits_of(fused_attention.FUSED, as_graph), expected, rtol=0, atol=2e-6)


def test_fused_attention_takes_a_mask_of_bool(monkeypatch):
    """Added to scores as 0 and 1, a bool mask would hide nothing."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # only compiled graphs compute attention as sums
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, length, 8, generator=generator) for length in (1, 6, 6))
    seen = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])[:, None, None]
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    layer = torch.nn.Module()
    of_bool, of_added = (fused_attention.fused_attention(layer, query, key, value, mask)[0] for mask in (seen, added))
    torch.testing.assert_close(of_bool, of_added, rtol=0, atol=2e-6)


@pytest.mark.slow
def test_models_keep_their_graphs_apart():
    """Like functions would share their graphs, and nothing of a model is guarded."""
    found = []
    for seed in (0, 1):
        target = tiny_target(num_hidden_layers=1, seed=seed)
        eager, graph = (Autoregressive(target=target, sampling=GREEDY, compiled=mode) for mode in (False, True))
        found.append(tokens_of(graph, RAGGED[:1]))
        assert found[-1] == tokens_of(eager, RAGGED[:1])
    assert found[0] != found[1]


def test_the_pass_that_makes_the_cache_cannot_be_compiled():
    """Its graph would clear the cache in every call."""
    lm = CachedLM(tiny_model(num_hidden_layers=1), vocabulary_size=50)
    lm.begin(1, 32)
    read = compiled_graphs.Compiled(lambda tokens: lm.forward(tokens, None, visible=3).logits, lm.device, name="a pass")
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.Unsupported, match="pass that makes the cache"):
        read(0, torch.tensor([[1, 2, 3]]))
