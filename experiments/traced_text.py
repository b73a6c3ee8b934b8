"""Traced tokens as they stand in a record: text, producer, p and q."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from framework.token_trace import Traced

UNFINISHED = "\ufffd"  # what a tokenizer makes of the first bytes of a character


def traced_text(tokens: Sequence[Traced], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    """One entry per token; together the texts are the decoded text.

    A character that several tokens make together is the last one's, and the others' text is empty.
    """
    entries: list[dict[str, Any]] = []
    before, ids = "", []
    for traced in tokens:
        ids.append(traced.token)
        text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        piece = "" if text.endswith(UNFINISHED) else text[len(before) :]
        before += piece
        entry = {"text": piece, "producer": traced.producer, "p": _short(traced.p), "q": _short(traced.q)}
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
