"""Prompt sources, and the conversion of their texts into token ids of bounded length."""

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from experiments.corpora.standard_library import StandardLibrary
from framework.prompts.hugging_face_dataset import HuggingFaceDataset
from framework.prompts.jsonl import Jsonl
from framework.prompts.prompt_set import PromptSet, make_prompts
from framework.prompts.prompt_source import PromptSource, Text

REPOSITORY = Path(__file__).parents[3]
SPEC_BENCH = REPOSITORY.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
BEGIN = 256


def byte_tokenizer(*, begin: bool) -> PreTrainedTokenizerFast:
    """A tokenizer of one token per byte, with a begin token if asked."""
    ids = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=ids | {"<s>": BEGIN}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", clean_up_tokenization_spaces=False)


class Texts:
    """A source that counts the texts it has yielded."""

    def __init__(self, *texts: str):
        self._texts = texts
        self.num_read = 0

    def texts(self) -> Iterator[Text]:
        for number, text in enumerate(self._texts):
            self.num_read += 1
            yield Text(name=f"text {number}", category="test", text=text)


def prompts_of(source: PromptSource, *, begin: bool = False, **options) -> PromptSet:
    settings = dict(
        count=None,
        max_prompt_tokens=None,
        max_tokens=100,
        overflow="error",
        vocabulary_size=257,
        chat=False,
        system=None,
    )
    return make_prompts(source, byte_tokenizer(begin=begin), **(settings | options))


def decoded(prompts: PromptSet) -> list[str]:
    return [byte_tokenizer(begin=False).decode(prompt.tokens) for prompt in prompts.prompts]


def write(path: Path, *records: object) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def read(path: str, field: str = "prompt", category_field: str | None = None) -> list[Text]:
    return list(Jsonl(path=path, field=field, reference_field=None, category_field=category_field, tests=None).texts())


# From texts to prompts


def test_texts_become_prompts_in_order() -> None:
    prompts = prompts_of(Texts("alpha", "naïve  γ"))
    assert decoded(prompts) == ["alpha", "naïve  γ"]
    assert [(prompt.name, prompt.category) for prompt in prompts.prompts] == [("text 0", "test"), ("text 1", "test")]
    assert (prompts.num_truncated, prompts.num_skipped) == (0, 0)


def test_special_tokens_are_the_tokenizers_choice() -> None:
    (prompt,) = prompts_of(Texts("alpha"), begin=True, max_prompt_tokens=3).prompts
    assert prompt.tokens[0] == BEGIN
    assert byte_tokenizer(begin=False).decode(prompt.tokens[1:]) == "al"


def test_max_prompt_tokens_cuts_before_the_length_is_judged() -> None:
    prompts = prompts_of(Texts("a" * 1000, "short"), max_prompt_tokens=6, max_tokens=6)
    assert decoded(prompts) == ["aaaaaa", "short"]
    assert prompts.num_truncated == 0


def test_count_takes_the_first_and_reads_no_further() -> None:
    source = Texts("one", "two", "three")
    assert decoded(prompts_of(source, count=2)) == ["one", "two"]
    assert source.num_read == 2


def test_count_beyond_what_is_there_takes_what_is_there_and_says_so(caplog) -> None:
    with caplog.at_level("INFO"):
        assert len(prompts_of(Texts("one", "two"), count=5).prompts) == 2
    assert caplog.messages == ["count is 5, and the source of prompts has 2 that fit; these are used"]


def test_overflow_is_an_error_that_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"text 1 has 6 tokens; allowed: 5\..*prompts\.overflow"):
        prompts_of(Texts("fives", "sixes!"), max_tokens=5)


def test_overflow_can_lose_its_beginning() -> None:
    prompts = prompts_of(Texts("fives", "sixes!"), max_tokens=5, overflow="truncate_left")
    assert decoded(prompts) == ["fives", "ixes!"]
    assert (prompts.num_truncated, prompts.num_skipped) == (1, 0)


def test_overflow_can_be_skipped_and_count_counts_what_remains() -> None:
    prompts = prompts_of(Texts("sixes!", "fives", "four", "no"), max_tokens=5, overflow="skip", count=2)
    assert decoded(prompts) == ["fives", "four"]
    assert (prompts.num_truncated, prompts.num_skipped) == (0, 1)


def test_no_prompt_left_is_an_error() -> None:
    with pytest.raises(ValueError, match="prompts= gives no prompt; skipped as longer than 2 tokens: 2 texts"):
        prompts_of(Texts("long", "longer"), max_tokens=2, overflow="skip")
    with pytest.raises(ValueError, match="prompts="):
        prompts_of(Texts())


def test_a_text_without_tokens_is_an_error() -> None:
    with pytest.raises(ValueError, match="text 1 has no tokens: its text is ''"):
        prompts_of(Texts("fine", ""))


def test_ids_outside_the_vocabulary_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"text 0 holds token id 256; .*vocabulary size, 256"):
        prompts_of(Texts("alpha"), begin=True, vocabulary_size=256)
    assert prompts_of(Texts("alpha"), begin=True, vocabulary_size=257).prompts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, r"^count is 0"),
        ({"count": 1.5}, r"^count is 1\.5; allowed: a whole number >= 1, or null"),
        ({"max_prompt_tokens": -1}, r"^max_prompt_tokens is -1"),
        ({"overflow": "truncate"}, r"^overflow is 'truncate'; allowed: error, truncate_left, skip"),
        ({"max_tokens": 0}, "leaves 0 tokens for a prompt; .* Lower max_new_tokens"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_is_read(options: dict[str, object], message: str) -> None:
    source = Texts("alpha")
    with pytest.raises(ValueError, match=message):
        prompts_of(source, **options)
    assert source.num_read == 0


# JSON lines


def test_jsonl_yields_strings_and_turns(tmp_path: Path) -> None:
    path = write(tmp_path / "made.jsonl", {"prompt": "one"}, {"prompt": ["two", "later turn"]})
    assert read(path) == [
        Text("made.jsonl:1", "made", "one"),
        Text("made.jsonl:2", "made", "two", next_turns=("later turn",)),
    ]


def test_jsonl_goes_into_records_for_texts_and_references(tmp_path: Path) -> None:
    path = write(tmp_path / "made.jsonl", {"translation": {"en": "A dog.", "de": "Ein Hund."}})
    fields = {"field": "translation.en", "reference_field": "translation.de", "category_field": None, "tests": None}
    assert list(Jsonl(path=path, **fields).texts()) == [Text("made.jsonl:1", "made", "A dog.", "Ein Hund.")]
    with pytest.raises(ValueError, match=r"^reference_field is 'translation.fr', which .* lacks; allowed: translation"):
        list(Jsonl(path=path, **(fields | {"reference_field": "translation.fr"})).texts())
    with pytest.raises(ValueError, match=r"^reference_field is .*; allowed: the name of a string"):
        list(Jsonl(path=path, **(fields | {"reference_field": "translation"})).texts())


def test_jsonl_fills_tests_with_fields(tmp_path: Path) -> None:
    record = {"prompt": "def f():", "test": "def check(f):\n    assert f() == {}", "entry_point": "f"}
    path = write(tmp_path / "made.jsonl", record)
    fields = {"field": "prompt", "reference_field": None, "category_field": None}
    (text,) = Jsonl(path=path, **fields, tests="{test}\ncheck({entry_point})").texts()
    assert text.tests == "def check(f):\n    assert f() == {}\ncheck(f)"
    with pytest.raises(ValueError, match=r"^tests is 'name', which .* lacks; allowed: prompt, test, entry_point"):
        list(Jsonl(path=path, **fields, tests="{name}").texts())
    for tests in ("{test", "{}", "{test!r}", "{test:>3}", ["{test}"]):
        with pytest.raises(ValueError, match=r"^tests is .*; allowed: text with names of fields in braces"):
            Jsonl(path=path, **fields, tests=tests)


def test_jsonl_categories_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.write_text('{"q": "one", "kind": "x"}\n\n  \n{"q": "two", "kind": 3}\n')
    texts = read(str(path), "q", "kind")
    assert [(text.name, text.category) for text in texts] == [("made.jsonl:1", "x"), ("made.jsonl:4", "3")]


def test_jsonl_survives_lines_that_hold_other_separators(tmp_path: Path) -> None:
    path = tmp_path / "made.jsonl"
    path.write_text('{"prompt": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert [text.text for text in read(str(path))] == ["a\u2028b\x85c"]


def test_jsonl_missing_file_is_found_at_once() -> None:
    with pytest.raises(FileNotFoundError, match=r"^path is 'nowhere\.jsonl', no such file"):
        Jsonl(path="nowhere.jsonl", field="prompt", reference_field=None, category_field=None, tests=None)


def test_jsonl_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^path"):
        Jsonl(path=str(tmp_path), field="prompt", reference_field=None, category_field=None, tests=None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "fine"}\n{"prompt": \n', "line 2 is not JSON"),
        (b'{"prompt": "caf\xe9"}\n', "line 1 is not JSON"),
        (b'{"prompt": "fine"}\n[1, 2]\n', "line 2 is a list; .*one JSON object a line"),
        (b'{"text": "x", "id": 3}\n', r"^field is 'prompt', which .*, line 1 lacks; allowed: text, id"),
        (b'{"prompt": 7}\n', r"^field is 'prompt', which holds 7 in .*, line 1; allowed: "),
        (b'{"prompt": []}\n', r"^field is 'prompt', which holds \[\] in .*, line 1"),
        (b'{"prompt": [1]}\n', r"^field is 'prompt', which holds \[1\] in .*, line 1"),
        (b"", r"^path is .*, which is empty; allowed: "),
        (b"\n \n", "is empty"),
    ],
)
def test_jsonl_bad_content_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "made.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(str(path))


def test_jsonl_missing_category_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "made.jsonl", {"prompt": "one"})
    with pytest.raises(ValueError, match=r"^category_field is 'kind', which .* lacks; allowed: prompt"):
        read(path, category_field="kind")


@pytest.mark.skipif(not SPEC_BENCH.exists(), reason="Spec-Bench does not lie beside this checkout")
def test_spec_bench_loads() -> None:
    source = Jsonl(path=str(SPEC_BENCH), field="turns", reference_field=None, category_field="category", tests=None)
    texts = list(source.texts())
    assert len(texts) == 480
    assert len({text.name for text in texts}) == 480
    assert {"translation", "summarization", "qa", "math_reasoning", "rag"} < {text.category for text in texts}
    prompts = prompts_of(source, max_tokens=1000, overflow="skip")
    assert len(prompts.prompts) + prompts.num_skipped == 480
    assert prompts.num_skipped > 0


# The standard library


@pytest.mark.slow
def test_standard_library_splits_are_disjoint_and_repeat() -> None:
    held_out = list(StandardLibrary(split="held_out").texts())
    train = list(StandardLibrary(split="train").texts())
    assert held_out == list(StandardLibrary(split="held_out").texts())
    assert held_out and len(train) > len(held_out)
    assert not {text.name for text in held_out} & {text.name for text in train}
    assert [text.name for text in held_out] == sorted((text.name for text in held_out), key=Path)


def test_standard_library_split_depends_on_the_name_alone(tmp_path: Path) -> None:
    here = next(StandardLibrary(split="held_out").texts())
    for name in ("argparse.py", here.name):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# another text\n" * 200)
    elsewhere = StandardLibrary(split="held_out", folder=str(tmp_path))
    assert here.name in {text.name for text in elsewhere.texts()}


def test_standard_library_without_sources_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="prompts=jsonl"):
        StandardLibrary(split="held_out", folder=str(tmp_path))


def test_standard_library_refuses_an_unknown_split() -> None:
    with pytest.raises(ValueError, match=r"^split .*is 'test'"):
        StandardLibrary(split="test")


# Datasets; tests that need the library are in test_hugging_face_dataset.py


def test_without_the_library_of_datasets_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[data\]'"):
        HuggingFaceDataset(
            path="some/facts",
            name=None,
            split=None,
            field="x",
            reference_field=None,
            category_field=None,
            tests=None,
            prefix="",
            revision=None,
            streaming=False,
        )


# The yaml files


@pytest.mark.parametrize("path", sorted((REPOSITORY / "conf" / "prompts").glob("*.yaml")), ids=lambda path: path.stem)
def test_yaml_spells_every_option_and_its_command(path: Path) -> None:
    first, second = path.read_text().splitlines()[:2]
    assert first.startswith("# ") and re.search(rf"prompts(@\w+)?={path.stem}\b", second)
    config = OmegaConf.load(path)
    source = get_class(config.source._target_)
    assert set(config.source) - {"_target_"} == set(inspect.signature(source).parameters)
    assert set(config) == {"source", "count", "max_prompt_tokens", "overflow", "chat", "system"}
    assert set(config) - {"source"} < set(inspect.signature(make_prompts).parameters)
