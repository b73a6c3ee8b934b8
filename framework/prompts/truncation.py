"""Tokenisation of texts that are cut on the right."""

from collections.abc import Sequence
from itertools import takewhile

from transformers import PreTrainedTokenizerBase


def leading_tokens(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_tokens: int | None) -> list[list[int]]:
    """Token ids of every text, cut on the right; special tokens at its end are kept.

    The tokenizer's own truncation would change the tokenizer, and the files that it is saved to.

    Args:
        tokenizer: tokenizer that may add special tokens, such as the end token of a T5's source.
        texts: any texts.
        max_tokens: most tokens of a text, special ones included; None: no limit.
    """
    # Not verbose: the tokenizer would warn of texts longer than the context, such as whole files.
    encoded = tokenizer(list(texts), return_special_tokens_mask=max_tokens is not None, verbose=False)
    if max_tokens is None:
        return encoded["input_ids"]
    return [
        _cut(ids, is_special, max_tokens)
        for ids, is_special in zip(encoded["input_ids"], encoded["special_tokens_mask"], strict=True)
    ]


def _cut(ids: list[int], is_special: list[int], max_tokens: int) -> list[int]:
    if len(ids) <= max_tokens:
        return ids
    num_special = sum(1 for _ in takewhile(bool, reversed(is_special)))
    special_suffix = ids[len(ids) - num_special :]
    return (ids[: max(0, max_tokens - num_special)] + special_suffix)[:max_tokens]
