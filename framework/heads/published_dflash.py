"""Published layouts of DFlash: that of the original project, and the `dflash` and `dspark` of `speculators`.

S positions of a block, H hidden, V rows of the target's output layer, Vd draft vocabulary. All name the layers alike.
The original layout numbers the outputs of the target's layers, speculators the entries of its `hidden_states`, one
more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import AutoConfig, Qwen3Config

from framework.core.option_error import OptionError
from framework.heads.dflash_layers import DflashLayers
from framework.heads.draft_layer import TargetEnds
from framework.heads.published_files import Export, PublishedFiles, draft_vocabulary, fill, open_published
from framework.heads.speculators_format import entries_of, speculators_dflash
from framework.models.encoder_decoder import num_decoder_layers
from framework.models.target import Target

OF_THE_TARGET = ("t2d", "verifier_lm_head.weight", "verifier_norm.weight")  # in the files, and not needed to draft
HIDDEN, HIDDEN_AND_TOKEN = "hidden", "hidden_and_token"


@dataclass(frozen=True)
class _Settings:
    """Settings of either layout.

    Attributes:
        layers: entries of the layers' config.
        block_size: S.
        mask_token: id of the token in the places to predict.
        hidden_layers: indices of `hidden_states`.
        from_pending: whether the first position, which holds pending, predicts a token too.
        draft_vocabulary: Vd; None: V.
        markov_rank: 0: no Markov head.
        confidence: input of the confidence head; None: no such head.
    """

    layers: Mapping[str, Any]
    block_size: int
    mask_token: int
    hidden_layers: tuple[int, ...]
    from_pending: bool = False
    draft_vocabulary: int | None = None
    markov_rank: int = 0
    confidence: str | None = None


@dataclass(frozen=True)
class PublishedDflash:
    """A drafter as read.

    Attributes:
        layers: its layers, on the target's device and in its dtype.
        block_size: S.
        mask_token: id of the token in the places to predict.
        hidden_layers: the target's hidden states that it reads, as `WithHiddenLayers.hidden_layers`.
        first: first position that predicts a token: 0, which holds pending, or 1.
        support: [Vd] int64: token ids of the draft vocabulary; None: all V.
    """

    layers: DflashLayers
    block_size: int
    mask_token: int
    hidden_layers: tuple[int, ...]
    first: int
    support: Tensor | None


def read_dflash(path: str, target: Target) -> PublishedDflash:
    """Read a drafter in any of the layouts.

    Args:
        path: a local folder, or a hub name.
        target: the target that it was trained for.

    Raises:
        OSError: the files cannot be read.
        ValueError: another kind of drafter, one for another target, or one with a feature that is not implemented.
    """
    files = open_published(path)
    with files.place.loading():  # a config's values may break the layers
        return _read(files, target)


def _read(files: PublishedFiles, target: Target) -> PublishedDflash:
    settings, ends = _settings(files), TargetEnds(target)
    config = _config(files, settings.layers)
    tensors = {name: tensor for name, tensor in files.tensors().items() if name not in OF_THE_TARGET}
    own = {name: f"{name}.weight" in tensors for name in ("embed_tokens", "lm_head")}
    _check_target(files, settings, config, target, ends, has_own_ends=all(own.values()))
    reduced = settings.draft_vocabulary if settings.draft_vocabulary != config.vocab_size else None
    layers = DflashLayers(
        config,
        num_features=len(settings.hidden_layers) * ends.hidden_size,
        own_embeddings=own["embed_tokens"],
        own_output=own["lm_head"],
        draft_vocabulary=len(tensors["d2t"]) if "d2t" in tensors else reduced,
        markov_rank=settings.markov_rank,
        confidence=settings.confidence,
    )
    like = {"dtype": ends.like["dtype"], "device": target.device}
    fill(layers, tensors, files=files, sizes={"hidden size": ends.hidden_size}, **like)
    layers.name_or_path = files.path  # type: ignore[assignment]  # as for models of transformers
    return PublishedDflash(
        layers=layers,
        block_size=settings.block_size,
        mask_token=settings.mask_token,
        hidden_layers=settings.hidden_layers,
        first=0 if settings.from_pending else 1,
        support=_support(files, layers, target),
    )


def export_dflash_to_speculators(path: str, target: Target, *, name: str) -> Export:
    """A drafter of the original project as a folder of `speculators`.

    Args:
        path: folder or hub name of the drafter.
        target: the target that it was trained for.
        name: folder or hub name of the target.

    Raises:
        OSError, ValueError: as by `read_dflash`; or the drafter is such a folder already.
    """
    drafter, files = read_dflash(path, target), open_published(path)
    if "speculators_model_type" in files.config:
        problem = "which is a folder of speculators already"
        raise OptionError(files.place.option, path, "a drafter in the original project's layout", problem)
    places = [layer - 1 for layer in drafter.hidden_layers]
    own = {"mask_token_id": drafter.mask_token, "target_layer_ids": places}
    config = entries_of(_config(files, files.config)) | {"block_size": drafter.block_size, "dflash_config": own}
    architectures = [type(target.model.model).__name__]
    return speculators_dflash(config, drafter.layers.state_dict(), name=name, architectures=architectures)


def _settings(files: PublishedFiles) -> _Settings:
    config = files.config
    kind = config.get("speculators_model_type")
    try:
        if kind in ("dflash", "dspark"):
            settings = _of_speculators(files)
        elif kind is None and "dflash_config" in config:
            settings = _of_the_original(files)
        else:
            what = f"a drafter of the kind {kind}" if kind else "no drafter with a dflash_config"
            raise _refusal(files, f"whose config.json describes {what}")
    except KeyError as error:
        raise _refusal(files, f"whose config.json has no {error.args[0]}") from error
    numbers, size, reduced = settings.hidden_layers, settings.block_size, settings.draft_vocabulary
    for what, holds, value, allowed in (
        ("layers", isinstance(settings.layers, Mapping), settings.layers, "settings by name"),
        ("block size", type(size) is int and size > 1, size, "a whole number >= 2"),
        ("mask token", type(settings.mask_token) is int, settings.mask_token, "a token id"),
        ("draft vocabulary", reduced is None or (type(reduced) is int and reduced > 0), reduced, "a whole number >= 1"),
        ("sample_from_anchor", isinstance(settings.from_pending, bool), settings.from_pending, "true or false"),
        (
            "target's layers",
            all(type(number) is int for number in numbers) and len(set(numbers)) == len(numbers),
            numbers,
            "different whole numbers",
        ),
    ):
        if not holds:
            raise _refusal(files, f"whose config.json has as {what} {value!r}, not {allowed}")
    return settings


def _of_the_original(files: PublishedFiles) -> _Settings:
    config = files.config
    own = config["dflash_config"]
    numbers = own.get("target_layer_ids") or spread_layers(config["num_target_layers"], config["num_hidden_layers"])
    return _Settings(
        layers=config,
        block_size=config.get("block_size") or own["block_size"],
        mask_token=own["mask_token_id"],
        hidden_layers=tuple(number + 1 for number in numbers),
    )


def spread_layers(num_target_layers: int, num_layers: int) -> list[int]:
    """Numbers of the target's layers where a config names none: evenly spread from the second to the last but two."""
    if num_layers == 1:
        return [num_target_layers // 2]
    step = (num_target_layers - 4) / (num_layers - 1)
    return [round(1 + index * step) for index in range(num_layers)]


def _of_speculators(files: PublishedFiles) -> _Settings:
    config = files.config
    is_dspark = config["speculators_model_type"] == "dspark"
    rank = config.get("markov_rank", 256) if is_dspark else 0
    kind = config.get("markov_head_type", "vanilla")
    if rank and kind != "vanilla":
        raise _refusal(files, f"whose Markov head is {kind}, not vanilla, which alone is implemented")
    confidence = None
    if is_dspark and config.get("enable_confidence_head", True):
        confidence = HIDDEN_AND_TOKEN if config.get("confidence_head_with_markov", True) else HIDDEN
    return _Settings(
        layers=config["transformer_layer_config"],
        block_size=config.get("block_size", 8),
        mask_token=config["mask_token_id"],
        hidden_layers=tuple(config["aux_hidden_state_layer_ids"]),
        from_pending=config.get("sample_from_anchor", is_dspark),
        draft_vocabulary=config.get("draft_vocab_size"),
        markov_rank=rank,
        confidence=confidence,
    )


def _config(files: PublishedFiles, given: Mapping[str, Any]) -> Qwen3Config:
    """Config of the layers, which are Qwen3's whatever model type they are described as."""
    kind = given.get("model_type", "qwen3")
    with files.place.loading():
        # Defaults are those of the model type: Qwen3's heads, for example, are 128 wide.
        described = AutoConfig.for_model(kind, **{key: value for key, value in given.items() if key != "model_type"})
        entries = {key: value for key, value in described.to_dict().items() if key not in ("model_type", "dtype")}
        entries["head_dim"] = entries.get("head_dim") or described.hidden_size // described.num_attention_heads
        config = Qwen3Config(**entries)
    if set(config.layer_types or []) - {"full_attention"}:
        raise _refusal(
            files, f"whose layers are {', '.join(sorted(set(config.layer_types or [])))}, not full_attention"
        )
    config._attn_implementation = "sdpa"
    return config


def _check_target(
    files: PublishedFiles,
    settings: _Settings,
    config: Qwen3Config,
    target: Target,
    ends: TargetEnds,
    *,
    has_own_ends: bool,
) -> None:
    """Reject a drafter for another target where config.json shows it.

    Raises:
        ValueError: one line says what differs.
    """
    num_layers = num_decoder_layers(target.model.model)
    expected = files.config.get("num_target_layers", num_layers)
    if expected != num_layers or not all(0 <= layer <= num_layers for layer in settings.hidden_layers):
        numbers = ", ".join(map(str, settings.hidden_layers))
        raise _refusal(
            files, f"made for a target of {expected} layers, hidden states {numbers}; this one has {num_layers}"
        )
    if config.hidden_size != ends.hidden_size and not has_own_ends:
        raise _refusal(files, f"made for a hidden size of {config.hidden_size} instead of {ends.hidden_size}")
    known = config.vocab_size if has_own_ends else ends.num_known
    if not 0 <= settings.mask_token < known:
        raise _refusal(files, f"whose mask token {settings.mask_token} has no embedding among {known}")
    if settings.draft_vocabulary in (None, config.vocab_size) and config.vocab_size < target.vocabulary_size:
        raise _refusal(
            files, f"made for a vocabulary of {config.vocab_size} instead of {target.vocabulary_size} tokens"
        )


def _support(files: PublishedFiles, layers: DflashLayers, target: Target) -> Tensor | None:
    if layers.d2t is None:
        return None
    return draft_vocabulary(layers.d2t, target.vocabulary_size, partial(_refusal, files))


def _refusal(files: PublishedFiles, problem: str) -> OptionError:
    return OptionError(files.place.option, files.path, "a DFlash drafter made for this target", problem)
