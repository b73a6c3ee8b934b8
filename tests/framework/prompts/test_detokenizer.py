"""Text in pieces: together the tokenizer's text, and never a broken character."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from experiments.config.resolvers import ZOO
from framework.models.pretrained import load_target
from framework.prompts.detokenizer import UNFINISHED, Detokenizer

TEXTS = (
    "def f(x):\n    return 'größer'  # naïve\n",
    "雪が降る。 ελληνικά, עברית, 🙂🙃 and \N{FAMILY}",
    " two  spaces\t\r\n",
    "",
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """Byte-level BPE trained on Python alone: other scripts become bytes."""
    path = str(ZOO / "target")
    return load_target(path=path, dtype="float32", device="cpu", attention="sdpa", context=None).tokenizer


def pieces(tokenizer, tokens: list[int]) -> list[str]:
    texts = Detokenizer(tokenizer)
    return [*(texts.append(token) for token in tokens), texts.rest()]


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text_and_each_is_whole(tokenizer, text):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    found = pieces(tokenizer, tokens)
    assert "".join(found) == text and not any(UNFINISHED in piece for piece in found)
    assert len(tokens) > len(text.split()) or not text


def test_a_character_cut_in_the_middle_is_left_out(tokenizer):
    tokens = tokenizer("abc 雪", add_special_tokens=False)["input_ids"]
    assert len(tokenizer("雪", add_special_tokens=False)["input_ids"]) > 1
    assert "".join(pieces(tokenizer, tokens[:-1])) == "abc "


def test_bytes_that_are_no_text_look_as_the_tokenizer_has_them(tokenizer):
    first, *_ = tokenizer("雪", add_special_tokens=False)["input_ids"]
    letter = tokenizer("a", add_special_tokens=False)["input_ids"]
    tokens = [first, *letter, *letter]
    assert "".join(pieces(tokenizer, tokens)) == tokenizer.decode(tokens) == UNFINISHED + "aa"


def test_special_tokens_have_no_text(tokenizer):
    letter = tokenizer("a", add_special_tokens=False)["input_ids"]
    assert "".join(pieces(tokenizer, [*letter, tokenizer.eos_token_id, *letter])) == "aa"


def test_words_keep_the_space_that_a_text_does_not_begin_with():
    words = Tokenizer(models.WordLevel({"▁ab": 0, "▁c": 1, "d": 2}, unk_token="d"))
    words.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    assert tokenizer.decode([1]) == "c"
    assert pieces(tokenizer, [0, 1, 2, 1, 1]) == ["ab", " c", "d", " c", " c", ""]
