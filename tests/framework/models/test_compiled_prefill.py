"""Compiled prefills give the eager ones' tokens; a graph serves prompts of every length."""

import pytest
import torch

from drafters.small_transformer import SmallTransformer
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.tiny_models import WITH_ENCODER, tiny_model, tiny_target, tiny_tokenizer
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.kernels.compiled_graphs import Compiled
from framework.kernels.packed_linear import _COPIES
from framework.metrics.graph_counts import counted_graphs
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import as_draft_model, as_target
from framework.models.target import Target

RAGGED = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1]]
LONG = [prompt * 4 for prompt in RAGGED]  # of 4 to 28 tokens, of which more than 16 are read in a graph
BATCHES = (LONG, [[7] * 30, [3, 4], [30]], [prompt[:17] for prompt in LONG])
DRAWN = Sampling(temperature=0.8, top_p=0.9)

pytestmark = pytest.mark.usefixtures("quickly")


def target_of(family: str, **config) -> Target:
    target = tiny_target(family, **config)
    target.model.compile_prefill = True
    return target


def both_ways(target: Target, drafter) -> list[Engine]:
    """An eager and a compiled engine with the same drafter."""
    return [
        Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=2), sampling=DRAWN, compiled=mode)
        for mode in (False, True)
    ]


def tokens_of(decoder: Engine, prompts) -> list[list[int]]:
    return decoder.generate(prompts, stopping=Stopping(max_new_tokens=6), seeds=list(range(len(prompts)))).tokens


def traces_of(prefills: Compiled) -> list[int]:
    """Number of traces of each graph."""
    return [len(graphs._traces) for graphs in prefills._graphs.values()]


@pytest.mark.parametrize(
    ("config", "drafter", "num_traces"),
    [
        pytest.param({"num_hidden_layers": 1}, "prompt_lookup", 1, id="llama"),
        pytest.param(
            {"family": "mistral", "sliding_window": 12}, "prompt_lookup", 1, id="window", marks=pytest.mark.slow
        ),
        pytest.param(
            {"family": "mistral", "sliding_window": 20}, "prompt_lookup", 2, id="across", marks=pytest.mark.slow
        ),
        pytest.param({"num_hidden_layers": 4}, "eagle3", 1, id="hidden-layers", marks=pytest.mark.slow),
    ],
)
def test_a_graph_serves_prompts_of_every_length(config, drafter, num_traces):
    target = target_of(**{"family": "llama"} | config)
    eager, graph = both_ways(target, tiny_factory(drafter, target.vocabulary_size)(target=target))
    for prompts in BATCHES:
        assert tokens_of(graph, prompts) == tokens_of(eager, prompts)
    prefills = target.model._prefill_graph
    assert traces_of(prefills) == [num_traces]
    assert tokens_of(graph, RAGGED) == tokens_of(eager, RAGGED)
    assert tokens_of(graph, LONG[:1]) == tokens_of(eager, LONG[:1])
    assert len(traces_of(prefills)) == 2, "short prompts are read eagerly, another number of rows has its own graph"


def test_draft_models_compile_theirs():
    target = target_of("llama", num_hidden_layers=1)
    model = tiny_model(num_hidden_layers=1, seed=2)
    drafter = SmallTransformer(target, model=lambda target: as_draft_model(model, target))
    eager, graph = both_ways(target, drafter)
    tallies = []
    for prompts in (LONG, LONG[::-1]):
        some = [
            each.generate(prompts, stopping=Stopping(max_new_tokens=20), seeds=[0, 1, 2]) for each in (eager, graph)
        ]
        assert some[0].tokens == some[1].tokens
        tallies.append([each.tally.accepted.tolist() for each in some])
    assert traces_of(drafter.model._prefill_graph) == [1]
    assert all(first == second for first, second in tallies), "a draft model that misread its prompt is accepted less"


def test_some_rows_are_read_in_turn_by_the_graph_for_one_row():
    model = target_of("llama", num_hidden_layers=2).model
    three, two = (
        Sequences.from_prompts(prompts, width=64, device=model.device, compiled=True)
        for prompts in ([[7] * 30, [3, 4] * 9, [5] * 20], [LONG[0], LONG[2]])
    )
    outputs = []
    for model.compile_prefill in (False, True):
        model.read_prompts(three)
        read = model.read_rows(two, [0, 2], layers=[1])
        all_rows = model.forward(torch.tensor([[8]] * 3), torch.tensor([24, 18, 28]), visible=29)
        outputs.append((read, all_rows.logits))
    (eager, after_eager), (graph, after_graph) = outputs
    torch.testing.assert_close(graph.logits, eager.logits)
    torch.testing.assert_close(graph.scored_states, eager.scored_states)
    for row, prompt in enumerate((LONG[0], LONG[2])):
        torch.testing.assert_close(graph.features[row, : len(prompt)], eager.features[row, : len(prompt)])
    torch.testing.assert_close(after_graph, after_eager)
    assert traces_of(model._prefill_graph) == [1, 1], "one graph for all three rows, and one for a single row"


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_ENCODER)
def test_encoders_have_a_graph_per_shape(family):
    target = target_of(family)
    eager, graph = both_ways(target, tiny_factory("prompt_lookup", target.vocabulary_size)(target=target))
    with counted_graphs() as graphs:
        for prompts in (LONG, LONG[::-1], [[7] * 60] * 3, LONG):
            assert tokens_of(graph, prompts) == tokens_of(eager, prompts)
    sources = traces_of(target.model._decoder._encoder_graph)
    assert sources == [1, 1] and graphs.compiled >= 2


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_machine_code_gives_the_same_tokens(family, machine_code):
    target = target_of(family, num_hidden_layers=1)
    eager, graph = both_ways(target, tiny_factory("prompt_lookup", target.vocabulary_size)(target=target))
    for prompts in (LONG, LONG[::-1], LONG[:1]):
        assert tokens_of(graph, prompts) == tokens_of(eager, prompts)


def test_where_nothing_is_compiled_it_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"target.compile_prefill is true, and .* has recurrent layers; allowed: fa"):
        as_target(tiny_model("mamba"), tiny_tokenizer(50), compile_prefill=True)
    monkeypatch.setattr(CachedLM, "device", torch.device("cuda"))
    with pytest.raises(ValueError, match=r"compile_prefill is true, and the device is cuda; allowed: false"):
        CachedLM(tiny_model(), vocabulary_size=50, compile_prefill=True)


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_prompts_before_compiled_rounds_are_read_with_packed_weights(family: str, compiled: bool) -> None:
    target = tiny_target(family)
    sequences = Sequences.from_prompts([target.as_prompt([5, 6, 7])], width=16, device=target.device, compiled=compiled)
    logits = target.model.read_prompts(sequences).logits
    layers = [each for each in target.model.model.modules() if isinstance(each, torch.nn.Linear)]
    assert [layer.weight in _COPIES for layer in layers] == [compiled] * len(layers)
    sequences = Sequences.from_prompts([target.as_prompt([5, 6, 7])], width=16, device=target.device)
    assert torch.allclose(target.model.read_prompts(sequences).logits, logits, atol=1e-6)


def test_prompts_in_bfloat16_are_read_with_products_of_a_library() -> None:
    model = tiny_target(dtype=torch.bfloat16).model
    sequences = Sequences.from_prompts([[5, 6, 7]], width=16, device=model.device, compiled=True)
    with torch.no_grad():
        model.read_prompts(sequences)
    assert not any(weight in _COPIES for weight in model.model.parameters())
