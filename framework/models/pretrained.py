"""Load a model and its tokenizer from a local folder or, by name, from a hub. Code in its repository never runs."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from framework.core.logits_processors import LogitsProcessors
from framework.core.option_error import OptionError, OtherTargetError
from framework.core.validation import check_whole
from framework.kernels.int8_linear import round_to_int8
from framework.models import attention as fused_attention
from framework.models.attention import AUTO, CHOICES, OURS, can_change, own_attention
from framework.models.cached_lm import FEW_TOKENS, CachedLM
from framework.models.generation_options import active_options, check_generation
from framework.models.hub import Place, locate
from framework.models.model_support import keep_frequencies, longest_context
from framework.models.target import Target
from framework.models.tensor_parallel import check_tensor_parallel, sharding, whole

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
# Packages that transformers needs to load quantised weights, by method; the errors of other methods name theirs.
QUANTISATION_PACKAGES = {
    "awq": ("gptqmodel", "accelerate"),
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "compressed-tensors": ("compressed-tensors",),
    "gptq": ("gptqmodel", "optimum"),
    "torchao": ("torchao",),
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(
    *,
    path: str,
    dtype: str,
    device: str,
    attention: str,
    context: int | None,
    device_map: str | dict[str, int | str] | None = None,
    tokenizer: str | None = None,
    generation: str | dict[str, Any] = "model",
    tf32: bool | None = None,
    tensor_parallel: str | None = None,
    prefill_chunk: int | None = None,
    compile_prefill: bool = False,
    weights: str | None = None,
) -> Target:
    """Load the target, the model whose output distribution is promised.

    Args:
        path: a local folder in Hugging Face format, or a hub name.
        dtype: float32, bfloat16, float16 or float64.
        device: a torch device; "auto": a GPU if there is one, else the CPU.
        attention: fused, flex, sdpa or eager; auto: fused if the probe passes with it, else the model's own.
        context: most positions to use; None: the model's own limit.
        device_map: placement by transformers over several GPUs: auto, balanced, balanced_low_0, sequential, or a dict
            from part of the model to GPU. Tokens and distributions are on the device of the embeddings. None: the
            whole model is on `device`.
        tokenizer: folder or hub name of another tokenizer; None: the model's own.
        generation: "model": apply the logits processors of the model's generation_config, as `generate` does;
            "ignore": apply none; a mapping: replace single options of the generation_config.
        tf32: whether float32 products, those of all models in this process, may be rounded to TensorFloat-32; None:
            PyTorch's settings remain.
        tensor_parallel: "auto": every process that torchrun started holds a part of the weights, divided by
            transformers' plan for the architecture, and runs the same rounds; None: this process holds all of them.
        prefill_chunk: most tokens per row that one pass of the target, or of a draft model, reads of a prompt, which
            bounds the memory of long prompts; None: all of them.
        compile_prefill: whether compiled decoders compile the prefill of target and draft models, too; on a CPU only.
        weights: "int8": the weights of all linear layers are rounded to 8 bits with a scale per output, and the rounded
            model is the target; None: as in its files.

    Raises:
        OSError: `path` cannot be loaded, or the hub cannot be reached.
        ValueError: a setting is unknown, the model cannot be served exactly, or an active option of its
            generation_config is not supported.
        ImportError: device_map or tensor_parallel is set, and the package accelerate is not installed.
    """
    if weights not in (None, "int8"):
        raise OptionError("weights", weights, "int8, or null for the weights as in the files")
    if weights and (device_map or tensor_parallel):
        raise OptionError("weights", weights, "null with device_map or tensor_parallel")
    check_device_map(device_map, device)
    check_tensor_parallel(tensor_parallel, device_map, device)
    _check_prefill(prefill_chunk, compile_prefill)
    check_generation(generation)
    if tf32 is not None:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
    place = locate(path)
    beside = place
    if tokenizer is not None:
        beside = locate(tokenizer, option="tokenizer", kind="tokenizer", holding=TOKENIZER_FILES)
    its_tokenizer = _load_tokenizer(beside, advice="; target.tokenizer may name another one")
    _check_generation_config(place, generation)
    shards = tensor_parallel is not None
    model = _load_model(place, dtype, device_named(device), attention, device_map=device_map, shards=shards)
    if weights:
        _round_weights(model, weights)
    vocabulary_size = _vocabulary_size(its_tokenizer, model)
    if tokenizer is not None and (num_tokens := num_ids(its_tokenizer)) > vocabulary_size:
        allowed = f"up to {vocabulary_size - 1}, which path has embeddings for"
        raise OptionError("tokenizer", tokenizer, allowed, f"with ids up to {num_tokens - 1}")
    return as_target(
        model,
        its_tokenizer,
        attention=attention,
        context=context,
        generation=generation,
        prefill_chunk=prefill_chunk,
        compile_prefill=compile_prefill,
    )


def _check_prefill(prefill_chunk: object, compile_prefill: object) -> None:
    check_whole("prefill_chunk", prefill_chunk, least=FEW_TOKENS, or_null=True)
    if not isinstance(compile_prefill, bool):
        raise OptionError("compile_prefill", compile_prefill, "true, false")


def _round_weights(model: PreTrainedModel, weights: str) -> None:
    """
    Raises:
        ValueError: the weights in the files are already quantised, or no layer can be rounded.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        raise OptionError("weights", weights, "null", "and the weights in the files are already quantised")
    if not round_to_int8(model):
        raise OptionError("weights", weights, "null", f"and {type(model).__name__} has no linear layers")


def as_target(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    attention: str = AUTO,
    context: int | None = None,
    generation: str | dict[str, Any] = "model",
    prefill_chunk: int | None = None,
    compile_prefill: bool = False,
) -> Target:
    """Target of a loaded model, which is used in place, in evaluation mode and with the requested attention.

    Args:
        model: a causal or encoder-decoder model.
        tokenizer: the model's tokenizer.
        attention: attention implementation, as for `load_target`.
        context: most positions to use, as for `load_target`.
        generation: logits processors, as for `load_target`.
        prefill_chunk: tokens per pass over a prompt, as for `load_target`.
        compile_prefill: whether compiled decoders compile the prefill, too, as for `load_target`.

    Raises:
        ValueError: the model cannot be served exactly, or an active option of its generation_config is not supported.
    """
    _check_prefill(prefill_chunk, compile_prefill)
    vocabulary_size = _vocabulary_size(tokenizer, model)
    cached = served(
        model,
        attention,
        vocabulary_size=vocabulary_size,
        context=context,
        prefill_chunk=prefill_chunk,
        compile_prefill=compile_prefill,
    )
    if compile_prefill:
        cached.refuse_recurrent("target.compile_prefill is true", "false")
    return Target(
        model=cached,
        tokenizer=tokenizer,
        vocabulary_size=vocabulary_size,
        fingerprint=fingerprint(model),
        processors=processors_of(model, generation, vocabulary_size=vocabulary_size),
    )


def _check_generation_config(place: Place, generation: str | dict[str, Any]) -> None:
    """Reject unsupported options of a model's generation_config before its weights are loaded.

    Raises:
        ValueError: an active option is not supported.
    """
    try:
        config = GenerationConfig.from_pretrained(place.path, local_files_only=place.is_local)
    except OSError:
        return  # there is no generation_config
    active_options(config, generation)


def processors_of(
    model: PreTrainedModel, generation: str | dict[str, Any], *, vocabulary_size: int
) -> LogitsProcessors:
    """Logits processors of a model's generation_config, as selected by `target.generation`.

    Raises:
        ValueError: an active option is not supported, or has an invalid value.
    """
    options = active_options(model.generation_config, generation)
    try:
        return LogitsProcessors(options, vocabulary_size=vocabulary_size, device=model.device)
    except ValueError as error:
        problem = f"and the model's generation_config cannot be applied ({error})"
        raise OptionError("generation", generation, "ignore", problem) from error


def load_draft_model(*, path: str, dtype: str, attention: str) -> Callable[[Target], CachedLM]:
    """Return a function that loads a small draft model for a given target, onto the target's device.

    Args:
        path: a local folder, or a hub name.
        dtype: dtype of the weights, as for `load_target`.
        attention: attention implementation, as for `load_target`.

    Raises:
        OSError: `path` does not exist, or the hub cannot be reached; raised before the target is loaded.

    Raises (when called with the target):
        OSError: `path` cannot be loaded.
        ValueError: the tokenizer differs from the target's, or the model cannot be served exactly.
    """
    return partial(_load_draft_model, place=locate(path), path=path, dtype=dtype, attention=attention)


def _load_draft_model(target: Target, *, place: Place, path: str, dtype: str, attention: str) -> CachedLM:
    tokenizer = _load_tokenizer(place)
    check_same_tokenizer(target.tokenizer, tokenizer, path=path)
    model = _load_model(place, dtype, target.device, attention)
    if model.config.is_encoder_decoder and not target.model.text_start:
        allowed = "a decoder-only model, since a decoder-only target has no source"
        raise OtherTargetError("path", path, allowed, "an encoder-decoder model")
    return as_draft_model(model, target, attention=attention, num_known=num_ids(tokenizer))


def as_draft_model(
    model: PreTrainedModel, target: Target, *, attention: str = AUTO, num_known: int | None = None
) -> CachedLM:
    """Draft model for a target from a loaded model, which is used in place, as by `as_target`.

    Args:
        model: a model with the target's tokenizer, on the target's device.
        target: the target.
        attention: attention implementation, as for `load_target`.
        num_known: number of tokens of the model's tokenizer, if it has fewer than the target's; None: all.

    Raises:
        ValueError: the model cannot be served exactly.
    """
    limit = longest_context(model.config.get_text_config()) or target.model.context
    return served(
        model,
        attention,
        vocabulary_size=target.vocabulary_size,
        num_known=num_known,
        context=min(target.model.context, limit),
        prefill_chunk=target.model.prefill_chunk,
        compile_prefill=target.model.compile_prefill,
    )


@dataclass(frozen=True)
class OtherModel:
    """Model with a tokenizer of its own, different from the target's."""

    model: CachedLM
    tokenizer: PreTrainedTokenizerBase


def load_other_model(*, path: str, dtype: str, attention: str) -> Callable[[Target], OtherModel]:
    """Return a function that loads a model with its own tokenizer, onto the target's device.

    Args:
        path: a local folder, or a hub name.
        dtype: dtype of the weights, as for `load_target`.
        attention: attention implementation, as for `load_target`.

    Raises:
        OSError: `path` does not exist, or the hub cannot be reached; raised before the target is loaded.

    Raises (when called with the target):
        OSError: `path` cannot be loaded.
        ValueError: the model cannot be served exactly.
    """
    return partial(_load_other_model, place=locate(path), path=path, dtype=dtype, attention=attention)


def _load_other_model(target: Target, *, place: Place, path: str, dtype: str, attention: str) -> OtherModel:
    tokenizer = _load_tokenizer(place)
    model = _load_model(place, dtype, target.device, attention)
    if model.config.is_encoder_decoder:
        raise OptionError("path", path, "a decoder-only model", "an encoder-decoder model")
    context = longest_context(model.config.get_text_config()) or target.model.context
    vocabulary_size = _vocabulary_size(tokenizer, model)
    chunk = target.model.prefill_chunk
    cached = served(model, attention, vocabulary_size=vocabulary_size, context=context, prefill_chunk=chunk)
    return OtherModel(cached, tokenizer)


def _vocabulary_size(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int:
    return min(num_ids(tokenizer), model.config.get_text_config().vocab_size)


def num_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """The largest id of a tokenizer, plus 1."""
    return max(tokenizer.get_vocab().values()) + 1


def check_device_map(device_map: str | dict[str, int | str] | None, device: str) -> None:
    """Check that a device_map can be applied, before anything is loaded.

    Raises:
        ValueError: the device_map is unknown or places a part on no GPU, or device is no GPU.
        ImportError: the package accelerate, which applies it, is not installed.
    """
    if device_map is None:
        return
    if not (isinstance(device_map, dict) and device_map) and device_map not in DEVICE_MAPS:
        allowed = f"null, {', '.join(DEVICE_MAPS)}, or a GPU for every part of the model"
        raise OptionError("device_map", device_map, allowed)
    if device_named(device).type != "cuda":
        raise OptionError("device_map", device_map, "null on a CPU", f"and device={device} is no GPU here")
    if isinstance(device_map, dict) and (elsewhere := _off_gpus(device_map)):
        problem = f"which puts {elsewhere[0]!r} on no GPU"
        raise OptionError("device_map", device_map, "GPUs, such as 0 or cuda:1", problem)
    if find_spec("accelerate") is None:
        raise ImportError(
            f"target.device_map is {device_map!r}, which needs the package accelerate: pip install -e '.[device-map]'; "
            "or set it to null"
        )


def _off_gpus(device_map: dict[str, int | str]) -> list[str]:
    """Parts of a model that are placed in CPU memory or on disk."""
    return [part for part, place in device_map.items() if str(place).split(":")[0] in ("cpu", "disk", "meta")]


def check_quantisation(settings: Any) -> None:
    """Check that the packages for loading quantised weights are installed.

    Args:
        settings: quantization_config of a model's config, as a dict; None: the weights are not quantised.

    Raises:
        ImportError: a package is missing.
        ValueError: transformers does not know the method, and would load the weights as if they were not quantised.
    """
    if settings is None:
        return
    # Old bitsandbytes configs name no method.
    old = "bitsandbytes" if settings.get("load_in_8bit") or settings.get("load_in_4bit") else None
    method = str(settings.get("quant_method") or old)
    if f"{method}_4bit" not in AUTO_QUANTIZER_MAPPING and method not in AUTO_QUANTIZER_MAPPING:
        raise ValueError(f"it is quantised with {method!r}, which transformers does not know")
    if missing := [name for name in QUANTISATION_PACKAGES.get(method, ()) if find_spec(name.replace("-", "_")) is None]:
        raise ImportError(f"it is quantised with {method}: pip install {' '.join(missing)}")


def check_same_tokenizer(target: PreTrainedTokenizerBase, drafter: PreTrainedTokenizerBase, *, path: str) -> None:
    """Check that two tokenizers agree, except for tokens added to either with ids above all ids of the other.

    Args:
        target: tokenizer of the target.
        drafter: tokenizer of the draft model.
        path: option value of the draft model, for the error.

    Raises:
        ValueError: the vocabularies differ elsewhere, so that a draft would mean another text.
    """
    ours, theirs = target.get_vocab(), drafter.get_vocab()
    differing = {
        entry
        for tokenizer, own, other in ((target, ours, theirs), (drafter, theirs, ours))
        for entry in own.items() - other.items()
        if entry[1] not in tokenizer.added_tokens_decoder or entry[1] <= max(other.values())
    }
    if differing:
        token, token_id = min(differing, key=lambda item: (item[1], item[0]))
        raise OtherTargetError(
            "path",
            path,
            "a model with the target's tokenizer, except for tokens added at the end",
            f"whose tokenizer differs from the target's in {len(differing)} entries, first {token!r} = {token_id}",
        )


def fingerprint(model: torch.nn.Module) -> str:
    """16 hex digits that identify a model's weights, the same in every dtype that represents them exactly.

    A hash over the name and shape of every tensor, a sample of its values, and the sum of all their float32 bits as
    integers modulo 2**32. Any single weight changes it; the device and its number of threads do not. For quantised
    weights, the tensors are the packed integers and their scales. Buffers that no file holds, such as rotary angles,
    are recomputed on every machine, and enter rounded to bfloat16.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(model), key=lambda item: item[0]):
        values = tensor.detach().flatten().float()
        sample = values[:: max(1, values.numel() // 64)].cpu().numpy()
        total = int(values.view(torch.int32).sum(dtype=torch.int32))
        digest.update(json.dumps([name, list(tensor.shape), total]).encode())
        digest.update(sample.tobytes())
    return digest.hexdigest()[:16]


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    saved = model.state_dict()
    for name, tensor in saved.items():
        yield from _plain(name, whole(tensor))
    for name, buffer in model.named_buffers():
        if name not in saved:
            yield name, buffer.bfloat16()


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensor, or the plain tensors that it consists of, each exact in float32."""
    if hasattr(tensor, "__tensor_flatten__"):
        for part in tensor.__tensor_flatten__()[0]:
            yield from _plain(f"{name}.{part}", getattr(tensor, part))
    else:
        # An int32 may pack several small integers, and is not exact in float32.
        yield name, tensor.reshape(-1).view(torch.uint8) if tensor.dtype is torch.int32 else tensor


def device_named(device: str) -> torch.device:
    """Torch device for a config value; "auto": a GPU if there is one, else the CPU.

    Raises:
        ValueError: the device cannot be used on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0]
        is_known = device.partition(":")[0] in ("cpu", "cuda")  # else PyTorch's message lists all devices
        problem = f"which cannot be used here: {reason}" if is_known else "which is unknown"
        raise ValueError(f"device is {device!r}, {problem}; allowed: auto, cpu, cuda") from error


def load_tokenizer(path: str, *, option: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or hub name, which is the value of `option` in errors.

    Raises:
        OSError: there is none, or the hub cannot be reached.
        ValueError: it cannot be read.
    """
    return _load_tokenizer(locate(path, option=option, kind="tokenizer", holding=TOKENIZER_FILES))


def _load_tokenizer(place: Place, *, advice: str = "") -> PreTrainedTokenizerBase:
    with place.loading():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                place.path, local_files_only=place.is_local, trust_remote_code=False
            )
            # Without a tokenizer's files, transformers makes one that has special tokens only.
            if set(tokenizer.get_vocab()) <= set(tokenizer.get_added_vocab()):
                raise ValueError("its vocabulary is empty")
            return tokenizer
        except ValueError as error:
            reason = str(error).strip().split("\n")[0]
            raise ValueError(f"there is no tokenizer that can be read ({reason}){advice}") from error


def _load_model(
    place: Place,
    dtype: str,
    device: torch.device,
    attention: str,
    *,
    device_map: str | dict[str, int | str] | None = None,
    shards: bool = False,
) -> PreTrainedModel:
    if dtype not in DTYPES:
        raise OptionError("dtype", dtype, ", ".join(DTYPES))
    if attention not in CHOICES:
        raise OptionError("attention", attention, ", ".join(CHOICES))
    options: dict[str, Any] = {"local_files_only": place.is_local, "trust_remote_code": False}
    fused_attention.register()
    with place.loading():
        config = AutoConfig.from_pretrained(place.path, **options)
        check_quantisation(getattr(config, "quantization_config", None))
    if shards:
        options |= sharding(config)
    with place.loading():
        model, report = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_pretrained(
            place.path,
            dtype=DTYPES[dtype],
            attn_implementation=None if attention in (AUTO, *OURS) else attention,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            device_map=device_map,
            **options,
        )
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"{len(missing)} weights are not in its files, {missing[0]} among them")
        if mismatched := sorted(report["mismatched_keys"]):
            name, in_file, in_config = mismatched[0]
            raise ValueError(f"{name} is {list(in_file)} in its files, and {list(in_config)} by its config.json")
        if device_map is None and not shards and model.device != device:
            model.to(device)
        elif device_map is not None and (elsewhere := _off_gpus(model.hf_device_map)):
            raise ValueError(
                f"the GPUs have no room for {len(elsewhere)} parts of it, {elsewhere[0]} among them; device_map "
                "needs more GPUs"
            )
    keep_frequencies(model)
    return model.requires_grad_(False)


def served(model: PreTrainedModel, attention: str, **settings: Any) -> CachedLM:
    """CachedLM of a model with the requested attention; auto: fused if the probe passes with it, else the model's own.

    Args:
        model: a loaded model; its attention implementation may be changed.
        attention: fused, flex, sdpa, eager or auto.
        settings: further arguments of CachedLM.

    Raises:
        ValueError: the model cannot be served exactly, or cannot run with the attention requested.
    """
    fused_attention.register()
    own = own_attention(model)
    ours = fused_attention.FUSED if attention == AUTO else attention
    if ours in OURS and can_change(model):
        model.set_attn_implementation(ours)
        try:
            return CachedLM(model, **settings)
        except ValueError:
            if attention != AUTO:
                raise
            model.set_attn_implementation(own)
    elif attention in OURS:
        problem = f"and {type(model).__name__} runs with its own alone"
        raise OptionError("attention", attention, f"{AUTO}, {own}", problem)
    return CachedLM(model, **settings)
