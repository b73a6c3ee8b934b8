"""Encoder-decoder targets: the same engine, with one source per row, encoded once."""

import pytest
import torch
from omegaconf import OmegaConf

from drafters.prompt_lookup import PromptLookup
from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.proof.architectures import TABLE
from experiments.proof.model_matrix import TRIALS, examine
from experiments.proof.tiny_drafters import FOLDER, tiny_factory, tiny_factory_of
from framework.conformance import check_drafter
from framework.conformance.tiny_models import WITH_ENCODER, save_tiny, tiny_target
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.engine import Engine
from framework.decoding.prefill import prefill
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.models import attention as fused_attention
from tests.support.drafter_kinds import KINDS

GREEDY = Sampling(temperature=0)
SOURCES = [[5, 6, 7, 8, 5, 6], [9], [3, 4] * 11, [1, 2, 1, 2, 1, 2, 1], [20], [2, 3, 4], [40, 30, 20, 10], [7] * 17]


def plain(target, prompts, max_new_tokens=20, sampling=GREEDY):
    stopping = Stopping(max_new_tokens=max_new_tokens)
    seeds = list(range(len(prompts)))
    return Autoregressive(target=target, sampling=sampling).generate(prompts, stopping=stopping, seeds=seeds).tokens


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_ENCODER)
def test_greedy_tokens_are_those_of_hugging_face(family):
    target = tiny_target(family)
    theirs = HuggingFaceGenerate(target=target, sampling=GREEDY)
    stopping = Stopping(max_new_tokens=20)
    expected = [theirs.generate([source], stopping=stopping, seeds=[0]).tokens[0] for source in SOURCES]
    assert [plain(target, [source])[0] for source in SOURCES] == expected
    assert plain(target, SOURCES) == expected
    assert len({tuple(tokens) for tokens in expected}) > 1, "the sources have no effect"


@pytest.mark.slow
def test_sinusoids_are_those_of_each_rows_own_positions():
    """M2M-100, whose own decoder counts positions over the whole batch."""
    (architecture,) = (each for each in TABLE if each.model_type == "m2m_100")
    result = examine(architecture, [trial for trial in TRIALS if trial.name == "layer_skip"])
    assert (result.outcome, result.refused, result.wrong) == ("served", {}, {})
    assert result.accepted < result.tested, "every draft is accepted, as if no layer were skipped"


@pytest.mark.parametrize("family", WITH_ENCODER)
def test_rows_of_different_lengths_are_what_uncached_passes_say(family):
    target = tiny_target(family)
    prompts = [Conditioned(source, [1, *source[::-1]]) for source in SOURCES]
    for prompt, tokens in zip(prompts, plain(target, prompts, 6), strict=True):
        for token in tokens:
            assert target.uncached(prompt)[-1].argmax() == token
            prompt += [token]


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.parametrize("name", [*(name for name in KINDS if not name.startswith("online_")), "input_copy"])
def test_drafters_keep_their_contract(name):
    target = tiny_target("t5", vocabulary=5)
    check_drafter(tiny_factory(name, 5), target=target, samples=2000).require()


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_drafter_with_an_encoder_keeps_its_contract(family, tmp_path):
    """The drafter reads the target's sources."""
    target = tiny_target(family, vocabulary=5)
    folder = save_tiny(tmp_path / "drafter", family, vocabulary=5, seed=3)
    node = OmegaConf.merge(OmegaConf.load(FOLDER / "small_transformer.yaml"), {"model": {"path": str(folder)}})
    check_drafter(tiny_factory_of(node, 5), target=target, samples=2000).require()


def test_a_drafter_with_an_encoder_needs_a_target_with_one(tmp_path):
    folder = save_tiny(tmp_path / "drafter", "t5", vocabulary=5)
    node = OmegaConf.merge(OmegaConf.load(FOLDER / "small_transformer.yaml"), {"model": {"path": str(folder)}})
    with pytest.raises(ValueError, match=r"^model.path is .* a decoder-only target has no source"):
        tiny_factory_of(node, 5)(target=tiny_target(vocabulary=5))


def test_a_source_needs_an_encoder():
    with pytest.raises(ValueError, match="a prompt has a source, but the target is decoder-only"):
        plain(tiny_target(), [Conditioned([1, 2], [3])])


def engine_of(target, name, *, as_graph=False, sampling=GREEDY):
    drafter = tiny_factory(name, target.vocabulary_size)(target=target)
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling, compiled=as_graph)


def test_each_source_is_read_once():
    target = tiny_target("t5")
    engine = engine_of(target, "prompt_lookup")
    read = []
    hook = target.model.model.get_encoder().register_forward_hook(lambda *given: read.append(1))
    cross = [
        module for name, module in target.model.model.decoder.named_modules() if name.endswith("EncDecAttention.k")
    ]
    keys = []
    for module in cross:
        module.register_forward_hook(lambda *given: keys.append(1))
    stopping = Stopping(max_new_tokens=20)
    for decoder in (engine, Autoregressive(target=target, sampling=GREEDY)):
        read.clear(), keys.clear()
        decoder.generate(SOURCES, stopping=stopping, seeds=list(range(8)))
        assert len(read) == 1 and len(keys) == len(cross) > 1
    hook.remove()


ONE_OR_RAGGED = pytest.mark.parametrize(
    "prompts",
    [pytest.param(SOURCES[:1], id="one", marks=pytest.mark.slow), pytest.param(SOURCES[:3], id="ragged")],
)


@pytest.fixture
def as_traced(monkeypatch):
    """Graphs run eagerly, as they were traced."""
    torch._dynamo.reset()
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small_transformer", "transformer_tree", "layer_skip", "prompt_lookup"])
@ONE_OR_RAGGED
def test_compiled_graphs_give_the_tokens_of_the_eager_loop(name, prompts, as_traced):
    target = tiny_target("t5")
    stopping, seeds = Stopping(max_new_tokens=12), list(range(len(prompts)))
    eager, graph = (
        engine_of(target, name, as_graph=mode, sampling=Sampling(temperature=0.8)) for mode in (False, True)
    )
    expected = eager.generate(prompts, stopping=stopping, seeds=seeds).tokens
    assert graph.generate(prompts, stopping=stopping, seeds=seeds).tokens == expected


@ONE_OR_RAGGED
def test_compiled_plain_decoding_too(prompts, as_traced):
    target, seeds = tiny_target("t5"), list(range(len(prompts)))
    baseline = Autoregressive(target=target, sampling=GREEDY, compiled=True)
    got = baseline.generate(prompts, stopping=Stopping(max_new_tokens=12), seeds=seeds).tokens
    assert got == plain(target, prompts, 12)


@pytest.mark.parametrize(
    ("attention", "dtype"), [("eager", torch.float32), ("eager", torch.float16), ("sdpa", torch.bfloat16)], ids=str
)
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_what_sources_are_padded_with_is_not_seen(family, attention, dtype):
    target, stopping = tiny_target(family, attention=attention, dtype=dtype), Stopping(max_new_tokens=2)
    with torch.no_grad():
        together = prefill(target, SOURCES[:3], stopping, max_nodes=0)[2].logits
        alone = torch.cat([prefill(target, [source], stopping, max_nodes=0)[2].logits for source in SOURCES[:3]])
    spread, close = alone.std(), 1e-6 if dtype == torch.float32 else 0.05
    assert (together - alone).abs().max() < close * spread


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_ENCODER)
def test_compiled_graphs_do_not_look_at_what_sources_are_padded_with(family, as_traced):
    fused_attention.register()
    target = tiny_target(family, attention=fused_attention.FUSED)
    engine, stopping = engine_of(target, "prompt_lookup", as_graph=True), Stopping(max_new_tokens=12)
    baseline = Autoregressive(target=target, sampling=GREEDY, compiled=True)
    for decoder in (baseline, engine):
        tokens = decoder.generate(SOURCES[:3], stopping=stopping, seeds=[0, 1, 2]).tokens
        assert tokens == [plain(tiny_target(family), [source], 12)[0] for source in SOURCES[:3]]


def test_prompt_lookup_copies_from_the_source():
    target = tiny_target("t5")
    prompt = Conditioned([9, 8, 7, 6, 5], [1, 9, 8])
    sequences = Sequences.from_prompts([prompt], width=32, device=target.device)
    proposed = []
    for from_source in (True, False):
        drafter = PromptLookup(target, max_ngram=3, min_ngram=1, match="last", from_source=from_source)
        drafter.begin(sequences, None, GREEDY)
        proposed.append(drafter.propose(sequences, 3, torch.empty(1, 0, dtype=torch.float64)).tokens.tolist())
    assert proposed == [[[7, 6, 5]], [[]]]
