"""Load a model and its tokenizer from a local folder or, by name, from a hub."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from framework.cached_lm import CachedLM
from framework.target import Target

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(*, path: str, dtype: str, device: str, attention: str, context: int | None) -> Target:
    """Load the model whose output law is promised.

    Args:
        path: a local folder in Hugging Face format, or a hub name.
        dtype: float32, bfloat16, float16 or float64.
        device: "auto" takes a GPU where there is one; else a torch device.
        attention: sdpa or eager.
        context: most positions to use; None takes the model's own limit.

    Raises:
        FileNotFoundError, OSError: nothing loadable at `path`.
        ValueError: an unknown setting, or a model that cannot be served exactly.
    """
    tokenizer = load_tokenizer(path, key="target.path")
    vocabulary_size = max(tokenizer.get_vocab().values()) + 1
    model = _load_model(path, dtype, device, attention, key="target")
    vocabulary_size = min(vocabulary_size, model.get_output_embeddings().weight.shape[0])
    return Target(
        model=CachedLM(model, vocabulary_size=vocabulary_size, context=context),
        tokenizer=tokenizer,
        vocabulary_size=vocabulary_size,
        fingerprint=fingerprint(model),
    )


def load_draft_model(*, path: str, dtype: str, attention: str) -> Callable[[Target], CachedLM]:
    """Say how to load a small model for a target; it is loaded once the target is known, onto the target's device.

    Raises (when called with the target):
        ValueError: its tokenizer is another one.
    """

    def load(target: Target) -> CachedLM:
        check_same_tokenizer(target.tokenizer, load_tokenizer(path, key="drafter.model.path"))
        model = _load_model(path, dtype, str(target.device), attention, key="drafter.model")
        context = min(target.model.context, getattr(model.config, "max_position_embeddings", target.model.context))
        return CachedLM(model, vocabulary_size=target.vocabulary_size, context=context)

    return load


def check_same_tokenizer(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase) -> None:
    """
    Raises:
        ValueError: the two give one id to different strings, so that a draft would mean another text.
    """
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours != theirs:
        differing = sorted(set(ours.items()) ^ set(theirs.items()), key=lambda item: (item[1], item[0]))
        token, token_id = differing[0]
        raise ValueError(
            f"the drafter's tokenizer differs from the target's: {len(differing)} entries, first {token!r} = {token_id}. "
            "Both must be the same; choose another drafter.model.path"
        )


def load_tokenizer(path: str, *, key: str) -> PreTrainedTokenizerBase:
    """
    Raises:
        FileNotFoundError: nothing there; the message names the yaml key.
    """
    _require_something_at(path, key)
    return AutoTokenizer.from_pretrained(path)


def fingerprint(model: torch.nn.Module) -> str:
    """16 hex digits that name the weights: a hash over names, shapes and a sample of every tensor."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        sample = tensor.flatten()[:: max(1, tensor.numel() // 64)].float().cpu().numpy()
        digest.update(json.dumps([name, list(tensor.shape)]).encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:16]


def _load_model(path: str, dtype: str, device: str, attention: str, *, key: str):
    if dtype not in DTYPES:
        raise ValueError(f"{key}.dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    if attention not in ("sdpa", "eager"):
        raise ValueError(f"{key}.attention is {attention!r}; allowed: sdpa, eager")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    _require_something_at(path, f"{key}.path")
    if AutoConfig.from_pretrained(path).is_encoder_decoder:
        raise ValueError(f"{key}.path={path} is an encoder-decoder model; give a decoder-only model")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=DTYPES[dtype], attn_implementation=attention)
    return model.to(device).requires_grad_(False)


def _require_something_at(path: str, key: str) -> None:
    """Fail at once where a folder is missing, before a library turns it into a hub request that times out."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
    if looks_local and not (Path(path).expanduser() / "config.json").exists():
        raise FileNotFoundError(f"{key} is {path!r}: no config.json there; give a model folder or a hub name")
