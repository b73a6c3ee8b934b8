"""Shared tokens of two tokenizers: those that represent the same bytes, in whatever notation."""

import json
import re

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # notation of a byte that is not a character
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]


def map_vocabularies(
    target: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase, *, widths: tuple[int, int]
) -> Tensor:
    """The intersection of two vocabularies (Timor et al., 2025, "token-level intersection").

    The two end-of-text tokens are shared, whatever their names; other special tokens never are. If several tokens of a
    tokenizer represent the same bytes, the first one counts, so that no token occurs twice on either side.

    Args:
        target: the target's tokenizer.
        own: the drafter's tokenizer.
        widths: vocabulary sizes of target and drafter; ids at or above them do not exist.

    Returns:
        [2, S] int64: ids in the target's vocabulary, and ids of the same tokens in the drafter's.
    """
    theirs, ours = (_first_ids(tokenizer, width) for tokenizer, width in zip((target, own), widths, strict=True))
    pairs = [(theirs[each], ours[each]) for each in theirs if each in ours]
    return torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2).T.contiguous()


def _first_ids(tokenizer: PreTrainedTokenizerBase, width: int) -> dict[bytes | None, int]:
    """First id of every byte string; None is the end of text."""
    ids: dict[bytes | None, int] = {}
    for token_id, stands_for in sorted(token_bytes(tokenizer).items()):
        if token_id < width:
            ids.setdefault(stands_for, token_id)
    end = tokenizer.eos_token_id
    if end is not None and end < width:
        ids[None] = end
    return ids


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    """Bytes that each token represents in a text; special tokens and tokens without bytes are left out."""
    added = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_ids, *(token_id for token_id, token in added.items() if token.special)}
    decode = _way_of_writing(tokenizer)
    found = {}
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in special:
            found[token_id] = added[token_id].content.encode() if token_id in added else decode(token)
    return {token_id: stands_for for token_id, stands_for in found.items() if stands_for}


class _AsItIs:
    """Tokens are written as the text that they represent."""

    def __call__(self, token: str) -> bytes:
        return token.encode()


class _ByteLevel:
    """Every byte is written as a printable character (GPT-2 and its descendants)."""

    def __init__(self) -> None:
        others = [byte for byte in range(256) if byte not in PRINTABLE]
        self._byte_of = {chr(byte): byte for byte in PRINTABLE}
        self._byte_of |= {chr(256 + place): byte for place, byte in enumerate(others)}

    def __call__(self, token: str) -> bytes:
        known = [self._byte_of[character] for character in token if character in self._byte_of]
        return bytes(known) if len(known) == len(token) else b""


class _Metaspace:
    """A space is written as ▁, and a byte that is not a character as <0x..> (SentencePiece)."""

    def __call__(self, token: str) -> bytes:
        byte = BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


class _WordPiece:
    """A token that continues a word begins with ##; every other token begins a word (BERT)."""

    def __call__(self, token: str) -> bytes:
        return token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()


def _way_of_writing(tokenizer: PreTrainedTokenizerBase) -> _AsItIs | _ByteLevel | _Metaspace | _WordPiece:
    if not tokenizer.is_fast:
        return _Metaspace() if any("▁" in token for token in tokenizer.get_vocab()) else _AsItIs()
    decoder = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"], ensure_ascii=False)
    for sign, way in (('"ByteLevel"', _ByteLevel), ("▁", _Metaspace), ('"WordPiece"', _WordPiece)):
        if sign in decoder:
            return way()
    return _AsItIs()
