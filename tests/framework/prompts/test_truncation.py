"""Texts that are cut on the right."""

from pathlib import Path

from transformers import AutoTokenizer

from framework.prompts.truncation import leading_tokens

REPOSITORY = Path(__file__).parents[3]


def test_a_cut_text_keeps_its_end_token() -> None:
    tokenizer = AutoTokenizer.from_pretrained(REPOSITORY / "experiments" / "zoo" / "translation" / "target")
    texts = ["the old man sees a cat", "a cat"]
    whole, short = leading_tokens(tokenizer, texts, None)
    for most in range(1, len(whole) + 2):
        (cut, _), saved = leading_tokens(tokenizer, texts, most), tokenizer.backend_tokenizer.truncation
        assert saved is None, "later texts, and saved tokenizers, would be cut as well"
        assert cut == tokenizer(texts[0], truncation=True, max_length=most)["input_ids"]
        tokenizer.backend_tokenizer.no_truncation()
    assert leading_tokens(tokenizer, texts, 4) == [[*whole[:3], tokenizer.eos_token_id], short]
