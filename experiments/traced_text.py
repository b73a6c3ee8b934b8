"""Traced tokens as they stand in a record: text, producer, p and q."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from framework.token_texts import TokenTexts
from framework.token_trace import Traced


def traced_text(tokens: Sequence[Traced], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """One entry per token; together their texts are what was decoded, special tokens included."""
    texts, special = TokenTexts(tokenizer), set(tokenizer.all_special_ids)
    entries = []
    for traced in tokens:
        text = texts.append(traced.token)
        if traced.token in special:  # which end the text, and are no part of it
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
    """Four digits: more would say nothing, and records are read by people, too."""
    return None if probability is None else float(f"{probability:.4g}")
