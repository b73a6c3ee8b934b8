"""Traced tokens as record entries: text, producer, p and q."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from framework.metrics.token_trace import Traced
from framework.prompts.detokenizer import Detokenizer

PROMPT_TOKENS = 256  # last tokens of a prompt whose text is recorded


def traced_row(prompt: Sequence[int], tokens: Sequence[Traced], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the end of a prompt, and the tokens decoded after it."""
    cut = "…" if len(prompt) > PROMPT_TOKENS else ""
    return {
        "prompt_text": cut + tokenizer.decode(prompt[-PROMPT_TOKENS:]),
        "tokens": traced_text(tokens, tokenizer),
    }


def traced_text(tokens: Sequence[Traced], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """Return one entry per token; the concatenated texts are the decoded text, special tokens included."""
    texts, special = Detokenizer(tokenizer), set(tokenizer.all_special_ids)
    entries = []
    for traced in tokens:
        text = texts.append(traced.token)
        if traced.token in special:  # the detokenizer omits special tokens
            text = tokenizer.decode([traced.token])
        entry: dict[str, Any] = {
            "text": text,
            "producer": traced.producer,
            "p": _short(traced.p),
            "q": _short(traced.q),
        }
        if drafted := traced.instead_of:
            entry["instead_of"] = {
                "text": tokenizer.decode([drafted.token], clean_up_tokenization_spaces=False),
                "p": _short(drafted.p),
                "q": _short(drafted.q),
            }
        entries.append(entry)
    return entries


def _short(probability: float | None) -> float | None:
    """Round to four significant digits, to keep records readable."""
    return None if probability is None else float(f"{probability:.4g}")
