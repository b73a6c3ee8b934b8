"""Load a model and its tokenizer from a local folder or, by name, from a hub. Code that lies beside it never runs."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from framework import fused_attention
from framework.cached_lm import CachedLM
from framework.hub import why_unreachable
from framework.refusal import ATTENTIONS, longest_context
from framework.target import Target

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(
    *,
    path: str,
    dtype: str,
    device: str,
    attention: str,
    context: int | None,
    device_map: str | dict[str, int | str] | None = None,
) -> Target:
    """Load the model whose output law is promised.

    Args:
        path: a local folder in Hugging Face format, or a hub name.
        dtype: float32, bfloat16, float16 or float64.
        device: "auto" takes a GPU where there is one; else a torch device.
        attention: fused, sdpa or eager.
        context: most positions to use; None takes the model's own limit.
        device_map: how transformers spreads the model over several GPUs: auto, balanced, balanced_low_0, sequential, or
            the GPU of every part by its name. Tokens and laws are where its embeddings are. None: all on `device`.

    Raises:
        OSError: nothing loadable at `path`, or no network to load it over.
        ValueError: an unknown setting, or a model that cannot be served exactly.
        ImportError: device_map without the package accelerate.
    """
    check_device_map(device_map, device)
    place = _locate(path, key="target.path")
    tokenizer = _load_tokenizer(place)
    model = _load_model(place, dtype, device_named(device), attention, key="target", device_map=device_map)
    vocabulary_size = _vocabulary_size(tokenizer, model)
    return Target(
        model=CachedLM(model, vocabulary_size=vocabulary_size, context=context),
        tokenizer=tokenizer,
        vocabulary_size=vocabulary_size,
        fingerprint=fingerprint(model),
    )


def load_draft_model(
    *, path: str, dtype: str, attention: str, key: str = "drafter.model"
) -> Callable[[Target], CachedLM]:
    """Say how to load a small model for a target; it is loaded once the target is known, onto the target's device.

    Args:
        path: a folder, or a name on the hub.
        dtype: of its weights.
        attention: implementation.
        key: where the yaml says so, for errors.

    Raises (when called with the target):
        OSError: nothing loadable at `path`, or no network to load it over.
        ValueError: its tokenizer is another one, or the model cannot be served.
    """

    return partial(_load_draft_model, path=path, dtype=dtype, attention=attention, key=key)


def _load_draft_model(target: Target, *, path: str, dtype: str, attention: str, key: str) -> CachedLM:
    place = _locate(path, key=f"{key}.path")
    check_same_tokenizer(target.tokenizer, _load_tokenizer(place), key=f"{key}.path")
    model = _load_model(place, dtype, target.device, attention, key=key)
    if model.config.is_encoder_decoder and not target.model.text_start:
        raise ValueError(
            f"{key}.path is {path!r}, an encoder-decoder model; a decoder-only target has no source for it"
        )
    limit = longest_context(model.config.get_text_config()) or target.model.context
    return CachedLM(model, vocabulary_size=target.vocabulary_size, context=min(target.model.context, limit))


@dataclass(frozen=True)
class OtherModel:
    """A model that reads and writes the tokens of its own tokenizer, not the target's."""

    model: CachedLM
    tokenizer: PreTrainedTokenizerBase


def load_other_model(
    *, path: str, dtype: str, attention: str, key: str = "drafter.model"
) -> Callable[[Target], OtherModel]:
    """The same for a model with another tokenizer; it is loaded together with that.

    Raises (when called with the target):
        OSError: nothing loadable at `path`, or no network to load it over.
        ValueError: the model cannot be served.
    """
    return partial(_load_other_model, path=path, dtype=dtype, attention=attention, key=key)


def _load_other_model(target: Target, *, path: str, dtype: str, attention: str, key: str) -> OtherModel:
    place = _locate(path, key=f"{key}.path")
    tokenizer = _load_tokenizer(place)
    model = _load_model(place, dtype, target.device, attention, key=key)
    if model.config.is_encoder_decoder:
        raise ValueError(f"{key}.path is {path!r}, an encoder-decoder model; allowed: a decoder-only one")
    context = longest_context(model.config.get_text_config()) or target.model.context
    return OtherModel(CachedLM(model, vocabulary_size=_vocabulary_size(tokenizer, model), context=context), tokenizer)


def _vocabulary_size(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    return min(max(tokenizer.get_vocab().values()) + 1, model.config.get_text_config().vocab_size)


def check_device_map(device_map: str | dict[str, int | str] | None, device: str) -> None:
    """See that a model can be spread as it says, before anything is loaded.

    Raises:
        ValueError: it says nothing that is known, or there is no GPU.
        ImportError: there is no accelerate, which does it.
    """
    if device_map is None:
        return
    given = f"target.device_map is {device_map!r}"
    if not (isinstance(device_map, dict) and device_map) and device_map not in DEVICE_MAPS:
        raise ValueError(f"{given}; allowed: null, {', '.join(DEVICE_MAPS)}, or a GPU for every part of the model")
    if device_named(device).type != "cuda":
        raise ValueError(f"{given}, and device={device} is no GPU here; allowed on a CPU: null")
    if isinstance(device_map, dict) and (elsewhere := _off_gpus(device_map)):
        raise ValueError(f"{given}, which puts {elsewhere[0]!r} on no GPU; allowed: GPUs, such as 0 or cuda:1")
    if find_spec("accelerate") is None:
        raise ImportError(
            f"{given}, which needs the package accelerate: pip install -e '.[device_map]'; or set it to null"
        )


def _off_gpus(device_map: dict[str, int | str]) -> list[str]:
    """Parts of a model that lie in the CPU's memory or on the disk."""
    return [part for part, place in device_map.items() if str(place).split(":")[0] in ("cpu", "disk", "meta")]


def check_same_tokenizer(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase, *, key: str) -> None:
    """
    Raises:
        ValueError: the two give one id to different strings, so that a draft would mean another text.
    """
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    if ours != theirs:
        differing = sorted(set(ours.items()) ^ set(theirs.items()), key=lambda item: (item[1], item[0]))
        token, token_id = differing[0]
        raise ValueError(
            f"the drafter's tokenizer differs from the target's in {len(differing)} entries, first {token!r} = "
            f"{token_id}; both must be the same: choose another {key}"
        )


def fingerprint(model: torch.nn.Module) -> str:
    """16 hex digits that name the weights, whatever dtype they are loaded in, provided it holds them exactly.

    A hash over the name and shape of every tensor, a sample of its values, and the sum of all their float32 bits as
    integers modulo 2**32: neither the device nor its number of threads changes it, and any single weight does.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().flatten().float()
        sample = values[:: max(1, values.numel() // 64)].cpu().numpy()
        total = int(values.view(torch.int32).sum(dtype=torch.int32))
        digest.update(json.dumps([name, list(tensor.shape), total]).encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class _Place:
    """Where to load from, and the yaml key that said so."""

    key: str
    path: str
    is_local: bool  # everything is on this machine: ask no hub

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Turn what the libraries raise into one line that names the yaml key; no progress bars for a local file."""
        bars = logging.is_progress_bar_enabled()
        if self.is_local:
            logging.disable_progress_bar()
        try:
            yield
        except UnpicklingError as error:
            # What the library says recommends to run whatever the file holds.
            raise OSError(
                f"{self.key} is {self.path!r}, which cannot be loaded: its .bin files are damaged, or hold more than "
                "tensors; give a model with .safetensors files"
            ) from error
        except (OSError, ValueError, RuntimeError, ImportError, SafetensorError) as error:
            kind = OSError if isinstance(error, (OSError, SafetensorError)) else ValueError
            reason = str(error).strip().split("\n")[0]
            raise kind(f"{self.key} is {self.path!r}, which cannot be loaded: {reason}") from error
        finally:
            if bars:
                logging.enable_progress_bar()


def _locate(path: str, *, key: str) -> _Place:
    """Find a folder, or make sure of the hub, before a library waits long for what it cannot reach.

    Raises:
        FileNotFoundError: a folder that is no model, or is not there.
        ConnectionError: a hub name that is not on this machine, and no hub.
    """
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return _Place(key, str(folder), is_local=True)
    if folder.exists() or path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise FileNotFoundError(f"{key} is {path!r}: no config.json there; give a model folder or a hub name")
    reason = why_unreachable()
    place = _Place(key, path, is_local=reason is not None)
    with place.loading():
        was_downloaded = isinstance(try_to_load_from_cache(path, "config.json"), str)
    if place.is_local and not was_downloaded:
        raise ConnectionError(
            f"{key} is {path!r}: no such folder, not downloaded yet, and {reason}; give a model folder"
        )
    return place


def device_named(device: str) -> torch.device:
    """The device a config names; "auto" takes a GPU where there is one.

    Raises:
        ValueError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"device is {device!r}, which cannot be used here: {reason}; allowed: auto, cpu, cuda"
        ) from error


def _load_tokenizer(place: _Place) -> PreTrainedTokenizerBase:
    with place.loading():
        return AutoTokenizer.from_pretrained(place.path, local_files_only=place.is_local, trust_remote_code=False)


def _load_model(
    place: _Place,
    dtype: str,
    device: torch.device,
    attention: str,
    *,
    key: str,
    device_map: str | dict[str, int | str] | None = None,
) -> PreTrainedModel:
    if dtype not in DTYPES:
        raise ValueError(f"{key}.dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    if attention not in ATTENTIONS:
        raise ValueError(f"{key}.attention is {attention!r}; allowed: {', '.join(ATTENTIONS)}")
    options: dict[str, Any] = {"local_files_only": place.is_local, "trust_remote_code": False}
    fused_attention.register()
    with place.loading():
        has_encoder = AutoConfig.from_pretrained(place.path, **options).is_encoder_decoder
        model, report = (AutoModelForSeq2SeqLM if has_encoder else AutoModelForCausalLM).from_pretrained(
            place.path,
            dtype=DTYPES[dtype],
            attn_implementation=attention,
            output_loading_info=True,
            device_map=device_map,
            **options,
        )
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{len(missing)} weights are not in its files, {missing[0]} for one")
        if device_map is None:
            model.to(device)
        elif elsewhere := _off_gpus(model.hf_device_map):
            raise ValueError(
                f"the GPUs have no room for {len(elsewhere)} parts of it, {elsewhere[0]} for one; {key}.device_map "
                "needs more of them"
            )
    return model.requires_grad_(False)
