"""`generate` of transformers with our engine inside: its tokens, its arguments, and what it costs a second time."""

import copy
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationMixin,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TextStreamer,
    dynamic_module_utils,
)
from transformers.generation import GenerateDecoderOnlyOutput, RepetitionPenaltyLogitsProcessor

from drafters.prompt_lookup import PromptLookup
from experiments.api import load_pair, outrider_generate
from experiments.hugging_face.outrider_generate import FOLDER
from framework.conformance.tiny_models import VOCABULARY, save_tiny, tiny_model, tiny_target, tiny_tokenizer

PAD, EOS = 0, [4, 39]
TOKENIZER = tiny_tokenizer()
TOKENIZER.pad_token = TOKENIZER.eos_token
LOOKUP = partial(PromptLookup, max_ngram=3, min_ngram=1, match="last")
GREEDY = {"do_sample": False, "max_new_tokens": 12, "pad_token_id": PAD, "eos_token_id": EOS}


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny_model(seed=1, dtype=torch.float64)


@pytest.fixture(scope="module")
def small() -> PreTrainedModel:
    return tiny_model(seed=1, dtype=torch.float64, num_hidden_layers=1)


def batch(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random prompts of these lengths, padded on the left."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(8, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths).unsqueeze(1)
    return {"input_ids": tokens.masked_fill(~mask, PAD), "attention_mask": mask.long()}


def ours(model: PreTrainedModel, inputs: dict[str, Any], **arguments: Any) -> Any:
    arguments = {"drafter": LOOKUP, "target_tokenizer": TOKENIZER, **inputs} | arguments
    return model.generate(**arguments, custom_generate=outrider_generate)


ONE, EIGHT = batch(5), batch(1, 9, 4, 2, 7, 9, 3, 6)


@pytest.mark.slow
@pytest.mark.parametrize("drafts_by", ["a name", "a tree of a model", "a drafter"])
def test_greedy_tokens_are_those_of_generate(model, small, drafts_by):
    drafter, overrides = {
        "a name": ("suffix_lookup", ["gamma=3"]),
        "a tree of a model": (small, ["drafter=transformer_tree", "gamma.gamma=4"]),
        "a drafter": (LOOKUP(target=tiny_target()), []),
    }[drafts_by]
    to_a_length = {**GREEDY, "eos_token_id": None, "max_new_tokens": None, "max_length": 20}
    for inputs in (ONE, EIGHT):
        for options in (GREEDY, to_a_length):
            theirs = model.generate(**inputs, **options)
            assert torch.equal(ours(model, inputs, drafter=drafter, overrides=overrides, **options), theirs)
    ends = {row.count(PAD) for row in model.generate(**EIGHT, **GREEDY)[:, 9:].tolist()}
    assert len(ends) > 4, "rows end apart"


PROCESSED = [
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2, "min_new_tokens": 5},
    {"min_length": 12, "forced_eos_token_id": 39, "bad_words_ids": [[9], [10, 11]]},
    {"sequence_bias": [[[12], 4.0], [[13, 14], 3.0]], "renormalize_logits": True},
    {"exponential_decay_length_penalty": (2, 1.5), "suppress_tokens": [20, 21], "begin_suppress_tokens": [22]},
    {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 2, "remove_invalid_values": True},
]


@pytest.mark.parametrize("options", PROCESSED, ids=lambda options: "-".join(options))
def test_logits_processors_are_those_of_generate(model, options):
    assert torch.equal(ours(model, ONE, **GREEDY, **options), model.generate(**ONE, **GREEDY, **options))
    assert not torch.equal(model.generate(**ONE, **GREEDY), model.generate(**ONE, **GREEDY, **options))


def test_padding_is_no_text_for_a_repetition_penalty(model):
    options = {**GREEDY, "logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.5)])}
    alone = [ours(model, batch_of(EIGHT, row), **options)[0].tolist() for row in range(8)]
    together = [[token for token in row if token != PAD] for row in ours(model, EIGHT, **options).tolist()]
    assert together == alone


def batch_of(inputs: dict[str, torch.Tensor], row: int) -> dict[str, torch.Tensor]:
    return {"input_ids": inputs["input_ids"][row][inputs["attention_mask"][row] == 1].unsqueeze(0)}


@pytest.mark.slow
def test_sampled_tokens_are_those_of_our_api_at_the_same_seed():
    model = tiny_model(seed=1, dtype=torch.float64)  # its own, since load_pair leaves it with another attention
    settings = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02}
    overrides = [f"sampling.{name}={value}" for name, value in settings.items()]
    pair = load_pair(
        "drafter=small_transformer", *overrides, "stop_at_eos=false", target=model, tokenizer=TOKENIZER,
        draft_model=model,
    )  # fmt: skip
    texts = ["a stitch", "in time saves"]
    inputs = TOKENIZER(texts, return_tensors="pt", padding=True, padding_side="left")
    made = ours(
        model, inputs, drafter=model, do_sample=True, num_return_sequences=2, seed=5, max_new_tokens=12,
        eos_token_id=None, pad_token_id=PAD, return_dict_in_generate=True, **settings,
    )  # fmt: skip
    expected = pair.generate([text for text in texts for _ in range(2)], seed=5, max_new_tokens=12)
    assert isinstance(made, GenerateDecoderOnlyOutput) and made.tally.metrics()["tau"] > 1
    assert made.sequences[:, inputs["input_ids"].shape[1] :].tolist() == [
        [token.id for token in completion.tokens] for completion in expected
    ]


@pytest.mark.parametrize(
    "options",
    [*PROCESSED, {"temperature": 0.6, "top_k": 7}, {"top_p": 0.7, "min_p": 0.1}, {"typical_p": 1.0, "top_k": None}],
    ids=lambda options: "-".join(options),
)
def test_the_distribution_is_the_one_that_generate_draws_from(model, options):
    """Their processors on a row's logits, and our target's with our sampling on the same text."""
    seen: dict[str, Any] = {}

    def spy(model, input_ids, logits_processor, stopping_criteria, generation_config, **others):
        seen["theirs"] = logits_processor
        return input_ids

    drawn = {**GREEDY, "do_sample": True, **options}
    model.generate(**ONE, **drawn, custom_generate=spy)
    ours(model, ONE, **drawn, seed=0)
    engine = vars(model)["_outrider"]._engine
    prompt = ONE["input_ids"][0].tolist()
    for new in ([], [12], [9, 10], [13, 9, 13, 9]):
        text = torch.tensor([prompt + new])
        theirs = seen["theirs"](text, model(text).logits[:, -1].float()).softmax(-1)
        logits = engine.target.next_logits(prompt, text[:, 5:], eos_ids=tuple(EOS), max_new_tokens=12)
        assert torch.allclose(engine.sampling.probs(logits.float()), theirs, atol=1e-6)


def test_torchs_generator_gives_the_seed_and_greedy_decoding_leaves_it_alone(model):
    draw = partial(ours, model, EIGHT, **{**GREEDY, "do_sample": True})
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        ours(model, ONE, **GREEDY)
        made.append(draw())
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])
    assert not torch.equal(made[2], draw())


class Sum(StoppingCriteria):
    """Ends a row whose last two tokens add up to a multiple of `number`; or all rows, if the first one's do."""

    def __init__(self, number: int, *, by_first_row: bool = False):
        self._number, self._by_first_row = number, by_first_row

    def __call__(self, input_ids, scores, **others):
        done = input_ids[:, -2:].sum(1) % self._number == 0
        return bool(done[0]) if self._by_first_row else done


@pytest.mark.parametrize("inputs", [ONE, EIGHT], ids=["one", "eight"])
@pytest.mark.parametrize("eos", [EOS, None], ids=["eos", "without"])
@pytest.mark.parametrize("criterion", [Sum(4), Sum(9), Sum(9, by_first_row=True)], ids=["4", "9", "first row"])
def test_rows_end_by_the_criteria_where_generate_ends_them(model, inputs, eos, criterion):
    options = {**GREEDY, "max_new_tokens": 40, "eos_token_id": eos}
    options["stopping_criteria"] = StoppingCriteriaList([criterion])
    assert torch.equal(ours(model, inputs, **options), model.generate(**inputs, **options))


@pytest.mark.slow
def test_an_encoder_decoder_model_reads_the_sources():
    model = tiny_model("t5", seed=3, dtype=torch.float64)
    inputs = {name: values.flip(1) for name, values in EIGHT.items()}
    options = {**GREEDY, "eos_token_id": 9}
    made = ours(model, inputs, return_dict_in_generate=True, **options)
    assert torch.equal(made.sequences, model.generate(**inputs, **options)) and made.sequences.shape[1] > 3


class Doubled(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores * 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"drafter": "promt_lookup"}, "drafter is 'promt_lookup'; did you mean prompt_lookup?"),
        ({"drafter": "eagle", "overrides": ["drafter.path=nowhere"]}, "drafter.path is 'nowhere'"),
        ({"drafter": 3}, "drafter is 3; allowed: a name of conf/drafter, "),
        ({"overrides": ["sampling.top_k=3"]}, "others are arguments of generate"),
        ({"overrides": ["drafter.max_ngram=3"]}, "none of the drafter, which is given as an object"),
        ({"overrides": ["gamma.gamma=-1"]}, "gamma.gamma is -1"),
        ({"target_tokenizer": None}, "target_tokenizer is None, and the model was built in memory"),
        ({"seed": -1}, "seed is -1"),
        ({"max_new_tokens": 500}, "max_new_tokens is 500; allowed: at most 123"),
        ({"num_beams": 2}, "num_beams is 2"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
        ({"guidance_scale": 2.0}, "guidance_scale is 2.0"),
        ({"do_sample": True, "typical_p": 0.5}, "typical_p is 0.5"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True"),
        ({"prefix_allowed_tokens_fn": lambda row, text: [5]}, "logits_processor is 'PrefixConstrainedLogitsProcessor'"),
        ({"logits_processor": LogitsProcessorList([Doubled()])}, "logits_processor is 'Doubled'"),
        (
            {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]), "min_new_tokens": 2}
            | {"do_sample": True, "temperature": 0.7},
            "logits_processor is 'TemperatureLogitsWarper', which occurs twice",
        ),
        (
            {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(2.0)]), "suppress_tokens": [5]},
            "where suppress_tokens has another place than in transformers",
        ),
        (
            {"logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=1)])},
            "made with other arguments than those of this call; allowed: the option repetition_penalty",
        ),
        ({"attention_mask": torch.tensor([[1, 1, 0, 1, 1]])}, "attention_mask is 'row 0'"),
        ({"position_ids": torch.arange(1, 6).unsqueeze(0)}, "position_ids is [1, 2, 3, 4, 5]"),
        ({"inputs_embeds": torch.zeros(1, 5, 32, dtype=torch.float64)}, "inputs_embeds is"),
    ],
)
def test_what_is_not_served_is_refused_in_one_line(model, arguments, says):
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        ours(model, ONE, **{**GREEDY, **arguments})
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_a_model_with_recurrent_layers_takes_no_trees(small):
    model = tiny_model("lfm2", seed=1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"drafts trees, and .* has recurrent layers"):
        ours(model, ONE, drafter=small, overrides=["drafter=transformer_tree"], **GREEDY)


@pytest.mark.slow
def test_a_second_call_builds_nothing_and_the_model_is_left_as_it_was(monkeypatch):
    model = tiny_model(seed=4)
    model.set_attn_implementation("eager")
    model.train()
    first = ours(model, ONE, drafter="suffix_lookup", **GREEDY)
    served = vars(model)["_outrider"]
    engine, target = served._engine, served._engine.target
    with monkeypatch.context() as patch:
        patch.setattr(type(served), "_build", lambda *arguments: pytest.fail("it was built again"))
        assert torch.equal(ours(model, ONE, drafter="suffix_lookup", **GREEDY), first)
        assert served._engine is engine
        ours(model, ONE, drafter="suffix_lookup", **GREEDY, repetition_penalty=1.2)
    ours(model, ONE, **GREEDY)
    assert served._engine.target.model is target.model, "another drafter has the same target"
    assert engine.target.model.attention == "eager" and all(module.training for module in model.modules())
    assert not hasattr(vars(copy.deepcopy(model))["_outrider"], "engine")
    model.double()
    ours(model, ONE, **GREEDY)
    assert served._engine.target.model is not target.model


def test_the_folder_takes_the_arguments_that_a_function_does_not_get(model, monkeypatch, tmp_path):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    run = partial(model.generate, **EIGHT, custom_generate=str(FOLDER), trust_remote_code=True, drafter=LOOKUP)
    options = {**GREEDY, "stop_strings": ["a", "b", "c"], "tokenizer": TOKENIZER}
    assert torch.equal(run(**options), model.generate(**EIGHT, **options))
    for name, value in (("streamer", TextStreamer(TOKENIZER)), ("assistant_model", model)):
        with pytest.raises(ValueError, match=f"{name} is '{type(value).__name__}'; allowed: None"):
            run(**options, **{name: value})


@pytest.mark.slow
def test_a_model_with_the_folder_beside_it_decodes_by_it(monkeypatch, tmp_path):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    saved = save_tiny(tmp_path / "tiny_with_generate", seed=1, dtype=torch.float64)
    shutil.copytree(FOLDER / "custom_generate", saved / "custom_generate")
    model = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True, dtype=torch.float64)
    made = model.generate(**EIGHT, drafter="prompt_lookup", **GREEDY)
    assert torch.equal(made, GenerationMixin.generate(model, **EIGHT, **GREEDY))
    assert vars(model)["_outrider"]._engine.drafter is not None


@pytest.mark.slow
def test_the_example_of_the_document_runs_as_it_stands(capsys):
    page = (Path(__file__).parents[3] / "docs" / "python_api.md").read_text(encoding="utf-8")
    snippet, *_ = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "custom_generate=" in text]
    assert len([line for line in snippet.splitlines() if line]) <= 12
    exec(snippet, {})
    assert "quicksort" in capsys.readouterr().out
