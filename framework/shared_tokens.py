"""Which tokens two tokenizers share: those that stand for the same bytes, however each writes them down."""

import json
import re

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how tokenizers name a byte that is no character
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]


def shared_tokens(target: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase, *, widths: tuple[int, int]) -> Tensor:
    """The intersection of two vocabularies (Timor et al., 2025, "token-level intersection").

    The end of text is one token, whatever each calls it; other special tokens are never shared. Where several tokens of
    a tokenizer stand for the same bytes, the first of them counts, so that no token is named twice on either side.

    Args:
        target: the target's tokenizer.
        own: the drafter's.
        widths: of the two laws; ids beyond them do not exist.

    Returns:
        [2, S] int64: ids in the target's vocabulary, and those of the same tokens in the drafter's.
    """
    theirs, ours = (_first_ids(tokenizer, width) for tokenizer, width in zip((target, own), widths, strict=True))
    pairs = [(theirs[each], ours[each]) for each in theirs if each in ours]
    return torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2).T.contiguous()


def _first_ids(tokenizer: PreTrainedTokenizerBase, width: int) -> dict[bytes | None, int]:
    """The first id of every string of bytes; None is the end of text."""
    ids: dict[bytes | None, int] = {}
    for token_id, stands_for in sorted(token_bytes(tokenizer).items()):
        if token_id < width:
            ids.setdefault(stands_for, token_id)
    end = tokenizer.eos_token_id
    if end is not None and end < width:
        ids[None] = end
    return ids


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes]:
    """What each token stands for in a text; special tokens stand for nothing and are left out."""
    added = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_ids, *(token_id for token_id, token in added.items() if token.special)}
    decode = _way_of_writing(tokenizer)
    found = {}
    for token, token_id in tokenizer.get_vocab().items():
        if token_id not in special:
            found[token_id] = added[token_id].content.encode() if token_id in added else decode(token)
    return {token_id: stands_for for token_id, stands_for in found.items() if stands_for}


class _AsItIs:
    """A token is written as what it stands for."""

    def __call__(self, token: str) -> bytes:
        return token.encode()


class _ByteLevel:
    """Every byte is a printable character (GPT-2 and its descendants)."""

    def __init__(self) -> None:
        others = [byte for byte in range(256) if byte not in PRINTABLE]
        self._byte_of = {chr(byte): byte for byte in PRINTABLE}
        self._byte_of |= {chr(256 + place): byte for place, byte in enumerate(others)}

    def __call__(self, token: str) -> bytes:
        known = [self._byte_of[character] for character in token if character in self._byte_of]
        return bytes(known) if len(known) == len(token) else b""


class _Metaspace:
    """A space is ▁, and a byte that is no character <0x..> (SentencePiece)."""

    def __call__(self, token: str) -> bytes:
        byte = BYTE.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()


class _WordPiece:
    """What goes on with a word begins with ##, and all else begins one (BERT)."""

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
