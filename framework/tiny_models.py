"""Tiny random models and a tokenizer for them, built in milliseconds: what tests, proofs and checks run on."""

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from framework.cached_lm import CachedLM
from framework.pretrained import fingerprint
from framework.target import Target

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gpt_neox")
WITH_ENCODER = ("t5", "mt5", "bart", "mbart", "marian")
EOS = "<eos>"
VOCABULARY = 50
CONTEXT = 128


def tiny_model(
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    vocabulary: int = VOCABULARY,
    context: int = CONTEXT,
    **config: Any,
) -> PreTrainedModel:
    """A random model of two layers; every weight is random, norms and biases too, so that each can be got wrong.

    Args:
        family: transformers' model_type, one of FAMILIES or another.
        seed: of the weights; the global generator is left as it was.
        vocabulary: rows of the output layer.
        context: max_position_embeddings.
        config: further entries of the model's config, in place of those here.
    """
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if family in WITH_ENCODER:
        sizes = _sizes_with_encoder(family, context)
    elif family == "gpt2":
        sizes["n_positions"] = context
    else:
        sizes |= {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": context}
    if family in ("qwen3", "gemma", "gemma2", "gemma3_text"):
        sizes["head_dim"] = 8
    if family == "mistral":
        sizes["sliding_window"] = None
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": None}
    settings = AutoConfig.for_model(family, **{"vocab_size": vocabulary, **sizes, **ends, **config})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made_by = AutoModelForSeq2SeqLM if settings.is_encoder_decoder else AutoModelForCausalLM
        model = made_by.from_config(settings, dtype=torch.float64, attn_implementation=attention)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
    return model.to(dtype).eval().requires_grad_(False)


def _sizes_with_encoder(family: str, context: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"d_model": 32, "decoder_start_token_id": 1}
    if family.endswith("t5"):
        return sizes | {"d_kv": 8, "d_ff": 48, "num_heads": 4, "num_layers": 2, "num_decoder_layers": 2,
                        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
                        "n_positions": context}  # fmt: skip
    sides = {f"{side}_{name}": size for side in ("encoder", "decoder")
             for name, size in (("ffn_dim", 48), ("attention_heads", 4))}  # fmt: skip
    return sizes | sides | {"encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": context}


def tiny_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """One token per character, in this order: end-of-text (id 0), space, a-z, newline, 0-9, A-Z, and so on."""
    return _tokenizer([EOS, *_characters(vocabulary - 1)], merges=[])


def tiny_other_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """The same characters the other way round, the first of them missing; and every two neighbours are a token, too."""
    characters = _characters(vocabulary - 1)[:0:-1] or _characters(vocabulary - 1)
    merges = list(zip(characters[::2], characters[1::2], strict=False))
    return _tokenizer([*characters, EOS, *map("".join, merges)], merges=merges)


def _characters(number: int) -> list[str]:
    first = " " + string.ascii_lowercase + "\n" + string.digits + string.ascii_uppercase + string.punctuation
    return [*first, *(chr(0x4E00 + i) for i in range(number))][:number]


def _tokenizer(tokens: list[str], merges: list[tuple[str, str]]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


def tiny_target(
    family: str = "llama", *, vocabulary: int = VOCABULARY, context: int = CONTEXT, **settings: Any
) -> Target:
    """A target of random weights; settings go to tiny_model."""
    model = tiny_model(family, vocabulary=vocabulary, context=context, **settings)
    return Target(
        model=CachedLM(model, vocabulary_size=vocabulary),
        tokenizer=tiny_tokenizer(vocabulary),
        vocabulary_size=vocabulary,
        fingerprint=fingerprint(model),
    )


def tiny_cached_lm(family: str = "llama", *, vocabulary: int = VOCABULARY, **settings: Any) -> CachedLM:
    """A served random model without a tokenizer, such as a small drafter's; settings go to tiny_model."""
    return CachedLM(tiny_model(family, vocabulary=vocabulary, **settings), vocabulary_size=vocabulary)


def save_tiny(
    folder: Path,
    family: str = "llama",
    *,
    vocabulary: int = VOCABULARY,
    tokenizer: PreTrainedTokenizerFast | None = None,
    **settings: Any,
) -> Path:
    """Write a random model and its tokenizer as a Hugging Face folder; settings go to tiny_model.

    Args:
        tokenizer: another one than tiny_tokenizer, of as many tokens as `vocabulary`.
    """
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    tiny_model(family, vocabulary=vocabulary, **settings).save_pretrained(folder)
    if bars:
        logging.enable_progress_bar()
    (tokenizer or tiny_tokenizer(vocabulary)).save_pretrained(folder)
    return folder
