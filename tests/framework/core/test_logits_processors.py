"""Logits processors of generation_config against transformers' own, in every loop and on every tree path."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import GenerationConfig

from experiments.peers.hugging_face import HuggingFaceGenerate
from experiments.proof.tiny_drafters import tiny_factory
from framework.conformance.goodness_of_fit import continuation_distribution
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.core.draft import Draft, SamplingScheme, Shape
from framework.core.logits_processors import PROCESSORS, LogitsProcessors, Texts
from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Sequences
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.beam_search import BeamSearch
from framework.decoding.engine import Engine
from framework.decoding.stopping import Stopping
from framework.gamma_policies.fixed import Fixed
from framework.kernels import compiled_graphs
from framework.metrics.equality import differences
from framework.models.generation_options import IN_YAML, REFUSED, WITHOUT_EFFECT, active_options
from framework.models.pretrained import load_target, processors_of
from framework.models.target import Target

GREEDY = Sampling(temperature=0)
WIDTH, EOS, MAX_NEW = 50, (0, 3), 11
PROMPTS = [[5, 6, 7, 8, 5, 6], [9], [1, 2, 1, 2, 1, 2, 1], [20, 4]]
FIRST = list(range(0, 50, 2))

OPTIONS = {
    "sequence_bias": {"sequence_bias": [[[7], 3.0], [[5, 6], -4.0], [[2, 1, 9], 9.0], [[2, 1], 9.0], [[11], -9.0]]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.7},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "repetition_favoured": {"repetition_penalty": 0.7},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "no_repeat_token": {"no_repeat_ngram_size": 1},
    "no_repeat_trigram": {"repetition_penalty": 0.7, "no_repeat_ngram_size": 3},
    "encoder_no_repeat_ngram_size": {"repetition_penalty": 0.6, "encoder_no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[0], [10], [49], *([a, b] for a in range(9, 50) for b in FIRST)]},
    "min_length": {"min_length": 9, "sequence_bias": [[[3], 20.0]]},
    "min_new_tokens": {"min_new_tokens": 5, "min_length": 40, "sequence_bias": [[[3], 20.0]]},
    "forced_bos_token_id": {"forced_bos_token_id": 17},
    "forced_eos_token_id": {"forced_eos_token_id": [3, 4]},
    "remove_invalid_values": {"suppress_tokens": FIRST, "remove_invalid_values": True},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (3, 1.6)},
    "suppress_tokens": {"suppress_tokens": FIRST},
    "begin_suppress_tokens": {"begin_suppress_tokens": FIRST},
    "begin_suppress_after_forced": {"begin_suppress_tokens": FIRST, "forced_bos_token_id": 17},
    "together": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "bad_words_ids": [[12], [7, 8]],
        "sequence_bias": [[[5], 2.0]],
        "min_new_tokens": 4,
        "forced_eos_token_id": 0,
        "exponential_decay_length_penalty": [6, 1.3],
        "suppress_tokens": [13, 14],
        "begin_suppress_tokens": [21, 8],
        "encoder_repetition_penalty": 1.3,
        "renormalize_logits": True,
    },
}


def with_options(target: Target, options: dict) -> Target:
    options = {name: value for name, value in options.items() if name not in WITHOUT_EFFECT}
    return replace(target, processors=processors_of(target.model.model, options, vocabulary_size=WIDTH))


@pytest.fixture(scope="module")
def decoder_only() -> Target:
    return tiny_target()


@pytest.fixture(scope="module")
def conditioned() -> Target:
    return tiny_target("t5")


def generated(target: Target, prompt, options: dict) -> list[int]:
    """Greedy tokens of `generate` for one prompt, from its own arguments alone."""
    if isinstance(prompt, Conditioned):
        given, also = prompt.source, {"decoder_input_ids": torch.tensor([prompt.text])}
    else:
        given, also = prompt, {}
    begun = len(prompt.text if isinstance(prompt, Conditioned) else prompt)
    given = torch.tensor([given])
    output = target.model.model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=MAX_NEW,
        do_sample=False,
        eos_token_id=list(EOS),
        pad_token_id=1,
        **{name: value for name, value in options.items() if name != "min_length" or "min_new_tokens" not in options},
        **also,
    )
    return output[0, begun:].tolist()


def decoded(decoder, prompts) -> list[list[int]]:
    stopping = Stopping(max_new_tokens=MAX_NEW, eos_ids=EOS)
    return decoder.generate(prompts, stopping=stopping, seeds=list(range(len(prompts)))).tokens


def engine_of(target: Target, name: str, sampling: Sampling = GREEDY, **settings) -> Engine:
    drafter = tiny_factory(name, target.vocabulary_size)(target=target)
    return Engine(target=target, drafter=drafter, gamma_policy=Fixed(gamma=3), sampling=sampling, **settings)


# Every processor against transformers' own, on rows of random trees


def rows_of_random_trees(seed: int) -> tuple[torch.Tensor, Sequences, Draft]:
    """Logits [4, 7, 50], ragged sequences with random tokens beyond their ends, six-node trees."""
    random = torch.Generator().manual_seed(seed)
    lengths = [1, 5, 9, 13]
    texts = [torch.randint(0, 4, (length,), generator=random).tolist() for length in lengths]
    sequences = Sequences.from_prompts(texts, width=24, device=torch.device("cpu"))
    beyond = torch.arange(24) >= sequences.lengths.unsqueeze(1)
    sequences.tokens[beyond] = torch.randint(0, 4, (int(beyond.sum()),), generator=random)
    sequences.prompt_lengths = torch.tensor([1, 1, 4, 13])
    parent = torch.stack([torch.randint(-1, node, (4,), generator=random) for node in range(6)], 1)
    parent = parent.cummax(1).values  # breadth-first
    tokens = torch.randint(0, 4, (4, 6), generator=random)
    draft = Draft(tokens, parent, torch.ones(4, 6, dtype=torch.bool), SamplingScheme.ONE_HOT, shape=Shape.TREE)
    return torch.randn(4, 7, WIDTH, generator=random), sequences, draft


SMALL = {  # options for texts of tokens 0 to 3
    "sequence_bias": [
        [[1], 1.5],
        [[0, 1], 0.25],
        [[2, 1], 0.5],
        [[1, 2, 3], -2.0],
        *([[a, a, 1], -0.1] for a in range(4)),
    ],
    "bad_words_ids": [[3], [2], [1, 2], [0, 0], [1, 2, 1]],
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "repetition_penalty": 1.3,
    "encoder_repetition_penalty": 1.4,
    "min_length": 9,
    "min_new_tokens": 5,
    "forced_bos_token_id": 2,
    "forced_eos_token_id": [3, 7],
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": (2, 1.4),
    "suppress_tokens": [1, 40],
    "begin_suppress_tokens": [0, 2],
}
CASES = [{name: value} for name, value in SMALL.items()] + [
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 3},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 30},
    {"begin_suppress_tokens": [0, 2], "forced_bos_token_id": 2},
    {name: value for name, value in SMALL.items() if name not in ("min_length", "forced_bos_token_id")},
]


@pytest.mark.parametrize("options", CASES, ids=lambda options: "+".join(options)[:40])
def test_every_row_is_what_transformers_makes_of_its_own_path(options, decoder_only):
    for seed in range(3):
        logits, sequences, draft = rows_of_random_trees(seed)
        if "remove_invalid_values" in options:
            logits[0, 1, 3], logits[1, 2, 4], logits[2, 0, 5] = torch.nan, torch.inf, -torch.inf
        eos, max_lengths = torch.tensor(EOS), sequences.prompt_lengths + 6
        ours = LogitsProcessors(options, vocabulary_size=WIDTH)
        got = ours.of_round(logits, sequences, draft, eos=eos, max_lengths=max_lengths)
        for batch in range(4):
            committed = sequences.texts[batch]
            paths = [[]]
            for node, above in enumerate(draft.parent[batch].tolist()):
                paths.append([*paths[above + 1], int(draft.tokens[batch, node])])
            prompt = sequences.tokens[batch : batch + 1, : int(sequences.prompt_lengths[batch])]
            config = GenerationConfig(**options, max_length=int(max_lengths[batch]))
            config._eos_token_tensor = eos
            theirs = decoder_only.model.model._get_logits_processor(
                config, input_ids_seq_length=prompt.shape[1], encoder_input_ids=prompt, device="cpu", model_kwargs={}
            )
            for row, path in enumerate(paths):
                expected = theirs(torch.tensor([committed + path]), logits[batch, row : row + 1].clone())[0]
                torch.testing.assert_close(got[batch, row], expected, rtol=0, atol=0, equal_nan=True)
        alone = ours.of_round(logits[:, :1], sequences, None, eos=eos, max_lengths=max_lengths)
        torch.testing.assert_close(alone, got[:, :1], rtol=0, atol=0, equal_nan=True)


def test_the_order_is_that_of_transformers(decoder_only):
    config = GenerationConfig(**SMALL, max_length=9)
    config._eos_token_tensor = torch.tensor(EOS)
    theirs = decoder_only.model.model._get_logits_processor(
        config, input_ids_seq_length=2, encoder_input_ids=torch.tensor([[1, 2]]), device="cpu", model_kwargs={}
    )
    names = [type(each).__name__.lower().replace("logitsprocessor", "") for each in theirs]
    stems = ["sequencebias", "encoderrep", "repetition", "norepeat", "encodernorepeat", "nobadwords", "minlength"]
    stems += ["minnewtokens", "forcedbos", "forcedeos", "infnan", "exponential", "suppress", "suppresstokensat"]
    assert len(names) == len(PROCESSORS) and all(map(str.startswith, names, stems)), names


def test_half_precision_logits_are_processed_in_float32():
    logits, sequences, draft = rows_of_random_trees(0)
    ours = LogitsProcessors({"repetition_penalty": 1.3}, vocabulary_size=WIDTH)
    lengths = {"eos": torch.tensor(EOS), "max_lengths": sequences.prompt_lengths + 6}
    half = logits.bfloat16()
    got = ours.of_round(half, sequences, draft, **lengths)
    assert got.dtype == torch.float32 and got.equal(ours.of_round(half.float(), sequences, draft, **lengths))


# T=0: tokens of `generate`


@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_tokens_are_those_of_generate(name, decoder_only):
    expected = [generated(decoder_only, prompt, OPTIONS[name]) for prompt in PROMPTS]
    target = with_options(decoder_only, OPTIONS[name])
    assert expected != decoded(Autoregressive(target=decoder_only, sampling=GREEDY), PROMPTS), "no token changes"
    plain = Autoregressive(target=target, sampling=GREEDY)
    assert decoded(plain, PROMPTS) == expected
    assert decoded(plain, PROMPTS[:1]) == expected[:1]
    for drafter in ("small_transformer", "transformer_tree", "prompt_lookup"):
        assert decoded(engine_of(target, drafter), PROMPTS) == expected, drafter
    assert decoded(engine_of(target, "prompt_lookup"), PROMPTS[:1]) == expected[:1]
    assert decoded(HuggingFaceGenerate(target=target, sampling=GREEDY), PROMPTS[:1]) == expected[:1]


def test_the_end_is_forced_by_the_budget_and_not_by_the_context():
    """As in transformers, where max_length becomes prompt length + max_new_tokens."""
    target = with_options(tiny_target(context=8), {"forced_eos_token_id": 44})
    prompts, stopping = [[5, 6], [9] * 4], Stopping(max_new_tokens=4)
    for decoder in (Autoregressive(target=target, sampling=GREEDY), engine_of(target, "prompt_lookup")):
        generation = decoder.generate(prompts, stopping=stopping, seeds=[0, 1])
        assert [tokens[-1] == 44 for tokens in generation.tokens] == [True, True]
    stopping = Stopping(max_new_tokens=5)
    for decoder in (Autoregressive(target=target, sampling=GREEDY), engine_of(target, "prompt_lookup")):
        generation = decoder.generate(prompts, stopping=stopping, seeds=[0, 1])
        assert [tokens[-1] == 44 for tokens in generation.tokens] == [True, False]
        assert generation.finish_reasons == ["length", "context"]


SOURCES = [Conditioned(source[::-1], [1, *source]) for source in PROMPTS[:2]] + [Conditioned([30, 31, 32, 30, 31], [1])]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_encoder_decoder_targets_likewise(name, conditioned):
    expected = [generated(conditioned, prompt, OPTIONS[name]) for prompt in SOURCES]
    target = with_options(conditioned, OPTIONS[name])
    assert decoded(Autoregressive(target=target, sampling=GREEDY), SOURCES) == expected
    assert decoded(engine_of(target, "transformer_tree"), SOURCES) == expected
    assert decoded(HuggingFaceGenerate(target=target, sampling=GREEDY), SOURCES[:1]) == expected[:1]


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["prompt_lookup", "medusa", "transformer_tree"])
def test_compiled_rounds_apply_them_too(drafter, decoder_only, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setitem(compiled_graphs.BACKENDS, "cpu", "eager")
    options = OPTIONS["together"] | {"encoder_no_repeat_ngram_size": 3, "begin_suppress_tokens": FIRST}
    target = with_options(decoder_only, options)
    expected = [generated(decoder_only, prompt, options) for prompt in PROMPTS]
    assert decoded(engine_of(target, drafter, compiled=True), PROMPTS) == expected


# T>0: distribution


DRAWN = {"repetition_penalty": 1.8, "no_repeat_ngram_size": 2, "sequence_bias": [[[1, 2], 1.5]], "min_new_tokens": 2}


def transformers_distribution(target: Target, prompt: list[int], length: int, sampling: Sampling) -> dict[tuple, float]:
    """Every continuation with its probability, from uncached passes and transformers' own processors."""
    model, probs = target.model.model, {(): 1.0}
    config = GenerationConfig(**DRAWN, max_length=len(prompt) + length)
    config._eos_token_tensor = None
    processors = model._get_logits_processor(
        config, input_ids_seq_length=len(prompt), encoder_input_ids=torch.tensor([prompt]), model_kwargs={}
    )
    for _ in range(length):
        longer = {}
        for new, mass in probs.items():
            text = torch.tensor([[*prompt, *new]])
            with torch.no_grad():
                scores = processors(text, model(input_ids=text, use_cache=False).logits[:, -1])[0]
            for token, prob in enumerate(sampling.probs(scores).tolist()):
                if prob:
                    longer[*new, token] = mass * prob
        probs = longer
    return probs


@pytest.mark.parametrize("drafter", ["small_transformer", "transformer_tree", "hierarchical"])
def test_drawn_tokens_follow_the_processed_distribution(drafter):
    """Chi-square with a false-alarm rate of 1e-9; negative control: unprocessed p."""
    sampling, prompt, length = Sampling(temperature=1.1), [1, 2, 3, 1], 4
    raw = tiny_target(vocabulary=4)
    target = replace(raw, processors=processors_of(raw.model.model, DRAWN, vocabulary_size=4))
    exact = continuation_distribution(target, prompt, length, sampling)
    theirs = transformers_distribution(raw, prompt, length, sampling)
    ours = dict(zip(map(tuple, exact.tokens.tolist()), exact.probs.tolist(), strict=True))
    assert ours == pytest.approx(theirs, rel=1e-4)
    seeds = list(range(1500))
    engine = engine_of(target, drafter, sampling)
    tokens = engine.generate([prompt] * len(seeds), stopping=Stopping(max_new_tokens=length), seeds=seeds).tokens
    assert exact.fit(tokens).p_value > 1e-9
    assert continuation_distribution(raw, prompt, length, sampling).fit(tokens).p_value < 1e-9


# Applied and refused options


def test_every_option_of_transformers_is_in_one_group():
    groups = [set(PROCESSORS), set(IN_YAML), set(REFUSED), set(WITHOUT_EFFECT)]
    assert set(vars(GenerationConfig())) == set.union(*groups)
    assert len(set.union(*groups)) == sum(map(len, groups))


def test_no_default_of_transformers_is_active():
    defaults = {k: v for k, v in GenerationConfig._get_default_generation_params().items() if v is not None}
    assert active_options(GenerationConfig(**defaults), "model") == {}
    assert active_options(GenerationConfig(), "model") == active_options(None, "model") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_h", 0.4),
        ("typical_p", 0.9),
        ("epsilon_cutoff", 3e-4),
        ("eta_cutoff", 3e-4),
        ("guidance_scale", 1.5),
        ("watermarking_config", {"greenlist_ratio": 0.5}),
        ("num_beams", 4),
        ("num_beam_groups", 2),
        ("diversity_penalty", 0.5),
        ("constraints", ["something"]),
        ("force_words_ids", [[3]]),
        ("penalty_alpha", 0.6),
        ("dola_layers", "high"),
        ("token_healing", True),
        ("stop_strings", ["end"]),
        ("max_time", 2.0),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name, value):
    config = GenerationConfig()
    setattr(config, name, value)
    with pytest.raises(
        ValueError,
        match=rf"^generation is .* sets {name} to .*; allowed: \{{{name}: null\}} to drop it alone, or ignore",
    ):
        active_options(config, "model")
    assert active_options(config, "ignore") == active_options(config, {name: None}) == {}


def test_refused_options_are_all_tested():
    (mark,) = test_what_is_not_supported_is_refused_by_name.pytestmark
    assert {name for name, _ in mark.args[1]} == set(REFUSED)


@pytest.mark.parametrize(
    ("generation", "message"),
    [
        ("none", "^generation is 'none'; allowed: model, ignore, or options"),
        ({"repetition_penaltie": 2}, "sets 'repetition_penaltie', which is unknown; allowed: sequence_bias, "),
        (
            {"temperature": 2},
            "^generation is .*, which sets temperature; allowed: others; set sampling.temperature instead",
        ),
        ({"max_length": 2}, "^generation is .*, which sets max_length; allowed: others; set max_new_tokens instead"),
        ({"repetition_penalty": -1}, r"repetition_penalty is -1, .*; allowed: ignore"),
        ({"no_repeat_ngram_size": 1.5}, r"no_repeat_ngram_size is 1.5, .*; allowed: ignore"),
        ({"forced_eos_token_id": 50}, r"forced_eos_token_id is 50, .*; allowed: ignore"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids is \[\[\]\], .*; allowed: ignore"),
        ({"suppress_tokens": 3}, r"suppress_tokens is 3, .*; allowed: ignore"),
        ({"num_beams": "many"}, "sets num_beams to 'many', which is not supported"),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(generation, message, decoder_only):
    with pytest.raises(ValueError, match=message) as caught:
        processors_of(decoder_only.model.model, generation, vocabulary_size=WIDTH)
    assert "\n" not in str(caught.value)


def test_a_folder_says_what_its_model_applies(tmp_path):
    path = save_tiny(tmp_path) / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}))
    settings = {"path": str(tmp_path), "dtype": "float32", "device": "cpu", "attention": "sdpa", "context": None}
    assert load_target(**settings).processors.options == {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    assert load_target(**settings, generation="ignore").processors.options == {}
    over = load_target(**settings, generation={"repetition_penalty": None, "min_new_tokens": 3})
    assert over.processors.options == {"no_repeat_ngram_size": 2, "min_new_tokens": 3}
    # The Hugging Face baseline applies the target's options; the model's own file has no effect.
    for generation in ("model", "ignore"):
        target = load_target(**settings, generation=generation)
        theirs = [decoded(HuggingFaceGenerate(target=target, sampling=GREEDY), [prompt])[0] for prompt in PROMPTS]
        assert theirs == decoded(Autoregressive(target=target, sampling=GREEDY), PROMPTS)
        assert target.model.model.generation_config.repetition_penalty == 1.5, "the baseline changed the model"


def test_beam_search_refuses_them(decoder_only):
    with pytest.raises(
        ValueError, match=r"does not apply the target's options repetition_penalty; set target\.generation=ignore"
    ):
        BeamSearch(target=with_options(decoder_only, {"repetition_penalty": 1.5}), num_beams=2)


def test_a_place_where_decodings_part_is_judged_by_processed_logits(decoder_only):
    target = with_options(decoder_only, {"sequence_bias": [[[7], 300.0], [[8], 200.0]]})
    (found,) = differences(target, [[5, 6]], [[7, 7]], [[7, 8]], max_new_tokens=2)
    raw = decoder_only.uncached([5, 6, 7])[-1]
    assert found.margin == pytest.approx(float(raw[7] + 300 - raw[8] - 200), rel=1e-5)


def test_a_row_that_may_not_go_on_says_so(decoder_only):
    target = with_options(decoder_only, {"suppress_tokens": list(range(WIDTH))})
    for decoder in (Autoregressive(target=target, sampling=GREEDY), engine_of(target, "prompt_lookup")):
        with pytest.raises(FloatingPointError, match=r"forbids every token \(target.generation\)"):
            decoded(decoder, PROMPTS)


def test_without_options_logits_are_left_as_they_are():
    logits, sequences, draft = rows_of_random_trees(0)
    lengths = {"eos": torch.tensor(EOS), "max_lengths": sequences.prompt_lengths}
    assert LogitsProcessors().of_round(logits, sequences, draft, **lengths) is logits


def test_texts_of_one_prompt_with_continuations_are_those_of_rounds():
    prompt, new = Conditioned([4, 5, 6], [1, 2]), torch.tensor([[7, 8], [9, 9]])
    texts = Texts.of_continuations(prompt, new, eos_ids=EOS, max_new_tokens=5)
    rows = [Conditioned([4, 5, 6], [1, 2, *its]) for its in new.tolist()]
    sequences = Sequences.from_prompts(rows, width=4, device=torch.device("cpu"))
    sequences.prompt_lengths = torch.tensor([2, 2])
    expected = Texts.of_round(sequences, None, eos=torch.tensor(EOS), max_lengths=torch.tensor([7, 7]))
    for name in ("tokens", "lengths", "prompt_lengths", "max_lengths", "source_lengths", "eos"):
        assert getattr(texts, name).equal(getattr(expected, name)), name
    assert texts.sources.equal(expected.sources[:, :3])
