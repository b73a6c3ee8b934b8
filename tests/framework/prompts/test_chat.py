"""Texts as a user's chat turn: the template's tokens, the options, and refused combinations."""

from collections.abc import Iterator

import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, tokenization_utils_base

from experiments.config.builders import build_prompts
from experiments.config.resolvers import ZOO
from framework.conformance.tiny_models import save_tiny, tiny_target
from framework.models.pretrained import load_target
from framework.prompts.chat import conversation_tokens
from framework.prompts.prompt_set import PromptSet, make_prompts
from framework.prompts.prompt_source import Text

SPECIAL = ["<s>", "<system>", "<user>", "<end>", "<answer>"]
BEGIN, SYSTEM, USER, END, ANSWER = range(256, 261)
# Like real templates: it starts with the begin token, and can start a turn of the model.
TEMPLATE = (
    "{{ bos_token }}{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}"
)


def tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Byte tokenizer with five special tokens; like Llama's, it prepends a begin token."""
    ids = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=ids, merges=[]))
    made.add_special_tokens(SPECIAL)
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", chat_template=template, clean_up_tokenization_spaces=False
    )


def plain(text: str) -> list[int]:
    """Token ids of a text without special tokens."""
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


class Texts:
    def __init__(self, *texts: str):
        self._texts = texts

    def texts(self) -> Iterator[Text]:
        for number, text in enumerate(self._texts):
            yield Text(name=f"text {number}", category="test", text=text)


def prompts(*texts: str, template: str | None = TEMPLATE, **options: object) -> PromptSet:
    settings = dict(
        count=None,
        max_prompt_tokens=None,
        max_tokens=100,
        overflow="error",
        vocabulary_size=261,
        chat="auto",
        system=None,
    )
    return make_prompts(Texts(*texts), tokenizer(template), **(settings | options))  # type: ignore[arg-type]


def test_a_text_becomes_the_users_turn_and_the_model_is_to_answer():
    made = prompts("hi", "naïve?", chat=True)
    assert made.chat
    assert [list(prompt.tokens) for prompt in made.prompts] == [
        [BEGIN, USER, *plain(text), END, ANSWER] for text in ("hi", "naïve?")
    ]


def test_a_system_text_comes_first():
    (prompt,) = prompts("hi", chat=True, system="be brief").prompts
    assert list(prompt.tokens) == [BEGIN, SYSTEM, *plain("be brief"), END, USER, *plain("hi"), END, ANSWER]


def test_auto_is_a_chat_exactly_where_there_is_a_template():
    assert prompts("hi", chat="auto") == prompts("hi", chat=True)
    assert prompts("hi", chat="auto", template=None) == prompts("hi", chat=False, template=None)
    as_it_is = prompts("hi", chat=False)
    assert not as_it_is.chat
    assert list(as_it_is.prompts[0].tokens) == [BEGIN, *plain("hi")]


def test_max_prompt_tokens_cuts_the_text_and_leaves_the_template_whole():
    whole, short = prompts("abcdef", "ab", chat=True, max_prompt_tokens=3, system="long system text").prompts
    before = [BEGIN, SYSTEM, *plain("long system text"), END, USER]
    assert list(whole.tokens) == [*before, *plain("abc"), END, ANSWER]
    assert list(short.tokens) == [*before, *plain("ab"), END, ANSWER]


@pytest.mark.parametrize("max_prompt_tokens", [3, 4])
def test_a_character_is_not_cut_in_two(max_prompt_tokens):
    (prompt,) = prompts("naïve", chat=True, max_prompt_tokens=max_prompt_tokens).prompts  # ï is tokens 3 and 4
    assert list(prompt.tokens) == [BEGIN, USER, *plain("naï"), END, ANSWER]


def test_the_template_counts_against_the_context():
    assert prompts("hi", chat=True, max_tokens=6).prompts
    with pytest.raises(ValueError, match="text 0 has 6 tokens; allowed: 5"):
        prompts("hi", chat=True, max_tokens=5)
    assert prompts("hi", "x", chat=True, max_tokens=5, overflow="skip").num_skipped == 1


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}" + TEMPLATE


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (None, {"chat": True}, r"^chat is True, .* no chat template; allowed: auto, false"),
        (TEMPLATE, {"chat": "yes"}, r"^chat is 'yes'; allowed: auto, true, false"),
        (TEMPLATE, {"chat": None}, r"^chat is None"),
        (TEMPLATE, {"chat": False, "system": "x"}, r"^system is 'x', but chat is false"),
        (None, {"chat": "auto", "system": "x"}, r"^system is 'x', but .* no chat template"),
        (TEMPLATE, {"chat": True, "overflow": "truncate_left"}, r"^overflow .* cut the chat template"),
        (NO_SYSTEM, {"chat": True, "system": "x"}, r"^system is 'x', .* no system turns; allowed: null"),
        ("{% broken", {"chat": True}, r"chat template refuses: .*chat=false"),
    ],
)
def test_what_cannot_be_names_its_key(template, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        prompts("hi", template=template, **options)
    assert "\n" not in str(raised.value)


def test_a_longer_text_than_the_tokenizer_knows_is_not_warned_of(monkeypatch):
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", lambda *args, **kwargs: pytest.fail(str(args)))
    short = tokenizer()
    short.model_max_length = 4
    settings = dict(count=None, max_prompt_tokens=3, max_tokens=100, overflow="error", vocabulary_size=261, system=None)
    make_prompts(Texts("a text of some length"), short, chat=True, **settings)  # type: ignore[arg-type]


def test_a_saved_model_brings_its_template(tmp_path):
    tokenizer().save_pretrained(save_tiny(tmp_path, vocabulary=261))
    target = load_target(path=str(tmp_path), dtype="float32", device="cpu", attention="sdpa", context=None)
    made = make_prompts(
        Texts("hi"), target.tokenizer, count=None, max_prompt_tokens=None, max_tokens=100, overflow="error",
        vocabulary_size=target.vocabulary_size, chat="auto", system=None,
    )  # fmt: skip
    assert list(made.prompts[0].tokens) == [BEGIN, USER, *plain("hi"), END, ANSWER]


def test_the_options_reach_the_prompts_from_the_config(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "hi"}\n')
    config = OmegaConf.load(ZOO.parents[1] / "conf" / "prompts" / "jsonl.yaml")
    config.source.path = str(file)
    cfg = OmegaConf.create({"prompts": config, "max_new_tokens": 8})
    cfg.prompts.chat, cfg.prompts.system = "auto", "x"
    with pytest.raises(ValueError, match=r"^prompts\.system is 'x'"):  # tiny targets have no template
        build_prompts(cfg, tiny_target())
    cfg.prompts.system = None
    assert not build_prompts(cfg, tiny_target()).chat


def test_the_embedded_models_have_no_template():
    assert not list(ZOO.rglob("*.jinja"))
    assert all("chat_template" not in path.read_text() for path in ZOO.rglob("tokenizer_config.json"))


def conversation(*turns: str, template: str = TEMPLATE) -> str:
    """Text of the tokens that the model wrote in a conversation, the others as dots."""
    made = tokenizer(template)
    found = conversation_tokens(made, turns, system="brief")
    assert found is not None
    tokens, is_answer = found
    assert tokens == made(made.apply_chat_template(
        [{"role": "system", "content": "brief"}]
        + [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)],
        tokenize=False,
    ), add_special_tokens=False)["input_ids"]  # fmt: skip
    return "".join(made.decode([token]) if learned else "." for token, learned in zip(tokens, is_answer, strict=True))


def test_answers_of_a_conversation_are_known_with_the_token_that_ends_them():
    begun = "." * len(("<s>", "<system>", *"brief", "<end>", "<user>", *"hi", "<end>", *"<assistant>"))
    later = "." * len(("<user>", *"hi", "<end>", *"<assistant>"))
    assert conversation("hi", "yes", "hi", "hi, hi") == f"{begun}yes<end>{later}hi, hi<end>"


NAMED = (
    "{% for turn in messages %}<user>{{ turn.role }}: {{ turn.content | trim }} <end>{% endfor %}"
    "{% if add_generation_prompt %}<user>assistant: {% endif %}"
)
# As of models that think: a new answer begins with a thought, and earlier ones are without.
THINKING = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>\n{% endif %}"
)


@pytest.mark.parametrize(
    ("answer", "template", "expected"),
    [(" sis\n", NAMED, "sis.<end>"), ("a", THINKING, "a<end>."), ("s\n", THINKING, "s.<end>.")],
)
def test_a_short_answer_is_not_found_in_the_header_of_its_turn(answer, template, expected):
    """And its end is learned after white space as well."""
    header = "<assistant>" if template is THINKING else "<assistant: "
    assert conversation("user", answer, template=template).endswith(f"{'.' * len(header)}{expected}")


def test_a_template_that_changes_an_answer_gives_none():
    assert conversation_tokens(tokenizer("{% for turn in messages %}{{ turn.content | upper }}{% endfor %}"),
                               ("hi", "yes"), system=None) is None  # fmt: skip
