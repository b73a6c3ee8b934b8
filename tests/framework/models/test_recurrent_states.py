"""Targets with recurrent layers: chain drafts leave no trace in their states; trees are refused."""

import random
from functools import cache
from itertools import product
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from drafters.hierarchical import Hierarchical
from drafters.ngram import NGram
from drafters.other_tokenizer import OtherTokenizer
from drafters.prompt_lookup import PromptLookup
from drafters.small_transformer import SmallTransformer
from drafters.transformer_tree import TransformerTree
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance import check_drafter
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import save_tiny, tiny_cached_lm, tiny_model, tiny_target, tiny_tokenizer
from framework.core.draft import Shape
from framework.core.sampling import Sampling
from framework.core.tree import Tree
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.beam_search import BeamSearch
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.metrics.equality import differences, within_float32
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import load_draft_model, load_target
from framework.models.recurrent_states import RecurrentStates
from framework.models.target import Target
from tests.support.drafter_kinds import every_drafter
from tests.support.slow_cases import mostly_slow

GREEDY = Sampling(temperature=0)
RAGGED = [[5, 6, 7, 8, 5, 6], [9], [3, 4], [1, 2, 1, 2, 1, 2, 1], [30], [7] * 20, [11, 12, 13], [2, 40, 2, 40]]
NEW_TOKENS = 104
# Gated delta rule and attention, short convolution and attention, state space alone, token-by-token state.
KINDS = ("qwen3_next", "lfm2", "mamba2", "jamba")
TWO = [("recurrent", 4), ("prompt_lookup", 1)]  # drafters with a gamma at which each finds drafts


@cache
def target_of(family: str, vocabulary: int = 50) -> Target:
    return tiny_target(family, vocabulary=vocabulary)


@cache
def generated(family: str, end: int | None = None, new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    """Answers of Hugging Face's `generate`, one prompt at a time."""
    model = target_of(family).model.model
    model.generation_config.eos_token_id = end
    ends = {"eos_token_id": end, "pad_token_id": 0}
    outputs = [
        model.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, **ends) for prompt in RAGGED
    ]
    return [output[0, len(prompt) :].tolist() for output, prompt in zip(outputs, RAGGED, strict=True)]


def likeness(target: Target) -> CachedLM:
    """The target with slightly noisy weights: a recurrent model that often has the same argmax."""
    model = tiny_model(target.model.model.config.model_type, vocabulary=target.vocabulary_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return CachedLM(model, vocabulary_size=target.vocabulary_size, context=target.model.context)


def small(target: Target) -> SmallTransformer:
    return SmallTransformer(target, model=lambda target: tiny_cached_lm(vocabulary=target.vocabulary_size, seed=3))


DRAFTERS = {
    "small_transformer": small,
    "recurrent": lambda target: SmallTransformer(target, model=likeness),
    "ngram": lambda target: NGram(target, order=3, smoothing="witten_bell", learn_from_context=True, corpus=None),
    "prompt_lookup": lambda target: PromptLookup(target, max_ngram=3, min_ngram=1, match="last"),
}


def engine(target: Target, drafter, gamma: int = 4, sampling: Sampling = GREEDY, **settings) -> Engine:
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=gamma), sampling=sampling, **settings)


def tokens_of(decoder: Engine | Autoregressive, prompts, stopping: Stopping) -> list[list[int]]:
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tokens


def require_as_generated(family: str, name: str, gamma: int) -> None:
    target, expected = target_of(family), generated(family)
    assert len({token for text in expected for token in text}) > 4, "texts of few distinct tokens would hide faults"
    decoder = engine(target, DRAFTERS[name](target), gamma)
    stopping = Stopping(max_new_tokens=NEW_TOKENS)
    for prompts, answers in ((RAGGED, expected), (RAGGED[3:4], expected[3:4])):
        found = differences(target, prompts, answers, tokens_of(decoder, prompts, stopping))
        assert within_float32(found, NEW_TOKENS * len(prompts)), found


def test_keys_of_a_failed_generation_are_cleared_in_layers_with_keys_and_states() -> None:
    target, stopping = target_of("falcon_h1"), Stopping(max_new_tokens=8)
    decoder = Autoregressive(target=target, sampling=GREEDY)
    before = tokens_of(decoder, RAGGED[:2], stopping)
    layers = [layer for layer in target.model._slots.cache.layers if layer.keys is not None]
    with torch.inference_mode():
        for layer in layers:
            layer.keys.fill_(torch.nan)
            layer.values.fill_(torch.nan)
    assert layers and tokens_of(decoder, RAGGED[:2], stopping) == before


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name", "gamma"), [(family, *case) for family in KINDS for case in TWO])
def test_greedy_tokens_equal_hugging_face(family, name, gamma):
    require_as_generated(family, name, gamma)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gamma"), sorted({*product(DRAFTERS, (1, 4))} - {*TWO}))
def test_greedy_tokens_of_all_drafters_equal_hugging_face(name, gamma):
    """One family; `tests/experiments/test_models.py` decodes all."""
    require_as_generated("qwen3_next", name, gamma)


# falcon_h1's layers each have a state, keys and values.
@pytest.mark.parametrize("family", mostly_slow([*KINDS, "falcon_h1"], fast=["lfm2", "mamba2"]))
def test_plain_decoding_equals_hugging_face(family):
    target = target_of(family)
    decoder = Autoregressive(target=target, sampling=GREEDY)
    got = tokens_of(decoder, RAGGED, Stopping(max_new_tokens=NEW_TOKENS))
    assert within_float32(differences(target, RAGGED, generated(family), got), NEW_TOKENS * len(RAGGED))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "family"), product(["recurrent", "prompt_lookup"], KINDS))
def test_rows_end_where_they_should(family, name):
    """Rows that end by eos, stop string or context leave the other rows exact."""
    target, whole = target_of(family), generated(family)
    end = whole[0][30]
    expected = [text[: text.index(end) + 1] if end in text else text for text in whole]
    assert len({len(text) for text in expected}) > 2
    decoder = engine(target, DRAFTERS[name](target))
    assert tokens_of(decoder, RAGGED, Stopping(max_new_tokens=NEW_TOKENS, eos_ids=(end,))) == expected
    plain = Autoregressive(target=target, sampling=GREEDY)
    string = target.tokenizer.decode(whole[5][40:42])
    stopping = Stopping(max_new_tokens=NEW_TOKENS, stop_strings=(string,), tokenizer=target.tokenizer)
    assert tokens_of(decoder, RAGGED, stopping) == tokens_of(plain, RAGGED, stopping)
    begun = [prompt + text[:90] for prompt, text in zip(RAGGED, whole, strict=True)]
    longer = tokens_of(decoder, begun, Stopping(max_new_tokens=500))
    assert [got[:14] for got in longer] == [text[90:104][: len(got)] for got, text in zip(longer, whole, strict=True)]
    assert {len(got) + len(prompt) + 90 for got, prompt in zip(longer, RAGGED, strict=True)} == {target.model.context}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_next", "mamba"])
def test_sampled_tokens_keep_their_distribution(family):
    """Chi-square of four tokens after two prompts in ragged batches; false-alarm rate 1e-9 each."""
    target, number = target_of(family, 5), 3000
    prompts, sampling = [[1, 2, 1, 3], [4]], Sampling()
    decoder = engine(target, DRAFTERS["recurrent"](target), 2, sampling)
    got = tokens_of(decoder, prompts * number, Stopping(max_new_tokens=4))
    for row, prompt in enumerate(prompts):
        fit = continuation_distribution(target, prompt, 4, sampling).fit(got[row::2])
        assert fit.p_value > 1e-9, fit
        wrong = continuation_distribution(target, [*prompt, 0], 4, sampling).fit(got[row::2])
        assert wrong.p_value < 1e-9, "the test misses a state that has read an extra token"


@pytest.mark.usefixtures("narrow_buffers")
@pytest.mark.slow
@pytest.mark.parametrize("family", KINDS)
def test_a_recurrent_drafter_keeps_the_contract(family):
    target = tiny_target(vocabulary=5)
    small_one = tiny_cached_lm(family, vocabulary=5, seed=4)
    check_drafter(lambda target: SmallTransformer(target, model=lambda _: small_one), target=target, samples=3000)\
        .require()  # fmt: skip


@pytest.mark.parametrize("name", every_drafter())
def test_every_drafter_is_exact_or_refused(name):
    """Every drafter with its yaml's options on a target with recurrent layers."""
    target, stopping = target_of("qwen3_next"), Stopping(max_new_tokens=30)
    try:
        decoder = engine(target, tiny_factory(name, target.vocabulary_size)(target=target))
    except ValueError as refused:
        assert "recurrent layers; allowed: " in str(refused) or "layer_skip cannot take the target" in str(refused)
        assert "\n" not in str(refused)
        return
    assert decoder.drafter.shape is Shape.CHAIN
    expected = [text[:30] for text in generated("qwen3_next")]
    assert within_float32(differences(target, RAGGED, expected, tokens_of(decoder, RAGGED, stopping)), 240)


def test_what_reads_trees_or_shares_a_cache_is_refused():
    target, plain = target_of("qwen3_next"), tiny_target()
    in_words = r"Qwen3NextForCausalLM .*has recurrent layers; allowed: "
    tree = TransformerTree(target, model=lambda _: plain.model, branching=[2, 1], children="iid")
    with pytest.raises(ValueError, match="TransformerTree drafts trees, and " + in_words):
        engine(target, tree)
    with pytest.raises(ValueError, match="engine.compile is true, and " + in_words + "false"):
        engine(target, small(target), compiled=True)
    with pytest.raises(ValueError, match="engine.compile is true, and " + in_words + "false"):
        Autoregressive(target=target, sampling=GREEDY, compiled=True)
    with pytest.raises(ValueError, match="beam search reads trees, and " + in_words):
        BeamSearch(target=target, num_beams=2)
    with pytest.raises(ValueError, match="beam search reads trees, and " + in_words):
        BeamSearch(target=plain, num_beams=2, drafter=target.model, drafted_beams=2, gamma_policy=Fixed(gamma=1))
    with pytest.raises(ValueError, match="shares its cache, and " + in_words):
        target.model.sharing_cache(target.model.model)
    with pytest.raises(ValueError, match="transformer_tree reads trees.* and " + in_words):
        TransformerTree(plain, model=lambda _: target.model, branching=[1], children="iid")
    with pytest.raises(ValueError, match="takes tokens back from drafter.model, and " + in_words):
        Hierarchical(plain, model=lambda _: target.model, drafter=small, gamma=2)
    with pytest.raises(ValueError, match="takes tokens back from drafter.model, and " + in_words):
        OtherTokenizer(plain, model=lambda _: SimpleNamespace(model=target.model, tokenizer=tiny_tokenizer()))
    with pytest.raises(ValueError, match="a tree is to be read, and " + in_words):
        target.model.begin(1, 16)
        target.model.forward(torch.ones(1, 1, dtype=torch.int64), None, visible=1)
        three, start = torch.ones(1, 3, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
        target.model.forward(three, start, visible=4, tree=Tree(torch.tensor([[-1, -1]])))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("rwkv", {"attention": "eager"}),
        ("xlstm", {"attention": "eager"}),
        ("recurrent_gemma", {"attention": "eager", "num_hidden_layers": 3}),  # the third has attention
        ("minimax", {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4}),
    ],
)
def test_states_outside_of_the_cache_are_refused(family, settings):
    model = tiny_model(family, **settings)
    with pytest.raises(ValueError, match=r"cannot be served: .*(outside of|elsewhere than in|cache of its own)"):
        CachedLM(model, vocabulary_size=50, context=128)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("fault", ["nothing is taken back", "padding is read"])
def test_the_probe_sees_states_that_were_not_taken_back(family, fault):
    """Loading a model fails under every kind of padding and acceptance that the probe tries."""

    def padded(self, texts):
        number = max(len(text) - num_read for text, num_read in zip(texts, self.num_read, strict=True))
        return [(list(range(len(texts))), number)] if number else []

    faults = {
        "nothing is taken back": patch.object(RecurrentStates, "take_back", lambda self, texts: None),
        "padding is read": patch.object(RecurrentStates, "unread", padded),
    }
    with faults[fault], pytest.raises((ValueError, IndexError), match="cannot be served"):
        tiny_cached_lm(family)


@pytest.mark.slow
def test_a_state_is_saved_only_where_a_draft_is_read():
    """Rounds without a draft, such as plain decoding's, advance states in place."""
    target = target_of("qwen3_next")
    with patch.object(RecurrentStates, "save", autospec=True, side_effect=RecurrentStates.save) as saves:
        tokens_of(Autoregressive(target=target, sampling=GREEDY), RAGGED, Stopping(max_new_tokens=20))
        assert not saves.called
        assert tokens_of(engine(target, small(target), 0), RAGGED, Stopping(max_new_tokens=20)) == [
            text[:20] for text in generated("qwen3_next")
        ]
        assert not saves.called
        tokens_of(engine(target, small(target), 3), RAGGED, Stopping(max_new_tokens=20))
        assert saves.called


def test_replay_is_a_stage_of_its_own():
    prompts, stopping = RAGGED[:2], Stopping(max_new_tokens=10)
    for family, stages in (("qwen3_next", {"replay"}), ("llama", set())):
        target = target_of(family)
        stopwatch = Stopwatch(target.device)
        engine(target, small(target)).generate(prompts, stopping=stopping, seeds=[0, 1], stopwatch=stopwatch)
        rounds = {"prefill", "begin", "draft", "target", "verify", "observe"}
        assert set(stopwatch.seconds()) == rounds | stages


@pytest.mark.slow
def test_gamma_may_change_from_round_to_round():
    """Gamma 0 included: the drafter's state skips rounds and reads their tokens later."""
    target, dice = target_of("lfm2"), random.Random(0)

    class Wild(Fixed):
        def next_gamma(self):
            return dice.choice([0, 0, 1, 2, 5])

    drafter = DRAFTERS["recurrent"](target)
    decoder = Engine(target=target, drafter=drafter, gamma_policy=Wild(gamma=5), sampling=GREEDY)
    got = tokens_of(decoder, RAGGED, Stopping(max_new_tokens=NEW_TOKENS))
    assert within_float32(differences(target, RAGGED, generated("lfm2"), got), NEW_TOKENS * len(RAGGED))


@pytest.mark.slow
def test_a_recurrent_model_may_draft_for_a_middle_one():
    """After a rollback it reads the texts anew."""
    target = tiny_target()
    expected = tokens_of(Autoregressive(target=target, sampling=GREEDY), RAGGED, Stopping(max_new_tokens=20))
    drafter = Hierarchical(
        target,
        model=lambda _: tiny_cached_lm(seed=2),
        drafter=lambda target: SmallTransformer(target, model=lambda _: tiny_cached_lm("qwen3_next")),
        gamma=2,
    )
    assert tokens_of(engine(target, drafter), RAGGED, Stopping(max_new_tokens=20)) == expected


@pytest.mark.slow
def test_a_recurrent_model_may_draft_for_a_compiled_target():
    target = tiny_target()
    expected = tokens_of(Autoregressive(target=target, sampling=GREEDY), RAGGED, Stopping(max_new_tokens=20))
    drafter = SmallTransformer(target, model=lambda _: tiny_cached_lm("qwen3_next"))
    assert tokens_of(engine(target, drafter, 2, compiled=True), RAGGED, Stopping(max_new_tokens=20)) == expected


@pytest.mark.parametrize(("family", "attention"), [("qwen3_next", "fused"), ("lfm2", "eager"), ("mamba2", "fused")])
def test_folders_are_loaded_with_any_attention(tmp_path, family, attention):
    folder = str(save_tiny(tmp_path / family, family))
    target = load_target(path=folder, dtype="float32", device="cpu", attention=attention, context=64)
    assert target.model.is_recurrent and target.model.model.config._attn_implementation == attention
    drafter = SmallTransformer(target, model=load_draft_model(path=folder, dtype="float32", attention=attention))
    got = tokens_of(engine(target, drafter), RAGGED[:3], Stopping(max_new_tokens=30))
    assert got == [text[:30] for text in generated(family)[:3]]
