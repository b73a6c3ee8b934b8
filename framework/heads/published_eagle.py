"""Published layouts of EAGLE: those of the original project (1, 2 and 3), of ModelOpt, and `eagle3` of `speculators`.

Training writes the original project's: config.json and model.safetensors, with the layers in
`eagle_aux_hidden_state_layer_ids` as indices of `hidden_states`; and beside them outrider.json, which names the target
by the fingerprint of its weights.

H hidden, V vocabulary, Vd draft vocabulary, L layers of the target.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

from framework.core.option_error import OptionError, OtherTargetError
from framework.heads.draft_layer import TargetEnds
from framework.heads.eagle_layer import Config, EagleOneLayer, EagleThreeLayer
from framework.heads.published_files import Export, PublishedFiles, draft_vocabulary, fill, open_published
from framework.heads.speculators_format import OF_LAYERS, entries_of, speculators_eagle3
from framework.models.encoder_decoder import num_decoder_layers
from framework.models.target import Target

FACTS = "outrider.json"
LAYER_NUMBERS = ("hidden_states", "outputs")
LAYERS = "eagle_aux_hidden_state_layer_ids"
SPECULATIVE_TOKENS = 5  # per draft in vLLM
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")  # in speculators' config, and in those that vLLM reads
OF_THE_TARGET = ("verifier_lm_head.weight", "verifier_norm.weight")  # in some files, and not needed to draft
TRAINED = "a published EAGLE drafter made for this target, or a folder that `train drafter=eagle3` wrote"
TRAINED_ON_MASKS = "a published P-EAGLE made for this target, or a folder that `train drafter=dart` wrote"


def read_eagle(path: str, target: Target, *, layer_numbers: str | None = None) -> EagleOneLayer | EagleThreeLayer:
    """Read a layer in any of the layouts; the tensors say which kind it is.

    Args:
        path: a local folder, or a hub name.
        target: the target that it was trained for.
        layer_numbers: how the config numbers the target's layers: "hidden_states" by the entry of `hidden_states`;
            "outputs" by the layer whose output it is, one less. None: by the entry's place in config.json.

    Raises:
        OSError: the files cannot be read.
        ValueError: another kind of drafter, one for another target, or one with a feature that is not implemented.
    """
    layer = _read(path, target, layer_numbers)
    if isinstance(layer, EagleThreeLayer) and layer.mask_token is not None:
        raise OptionError("path", path, TRAINED, "whose mask_hidden makes it one for drafter=peagle or dart")
    return layer


def read_peagle(path: str, target: Target, *, layer_numbers: str | None = None) -> EagleThreeLayer:
    """Read a P-EAGLE or DART layer; arguments and errors as for `read_eagle`."""
    layer = _read(path, target, layer_numbers, trained_as="dart")
    if not isinstance(layer, EagleThreeLayer) or layer.mask_token is None:
        problem = "without mask_hidden: another kind of EAGLE, which drafter=eagle3 reads"
        raise OptionError("path", path, TRAINED_ON_MASKS, problem)
    return layer


def _read(
    path: str, target: Target, layer_numbers: str | None, *, trained_as: str = "eagle3"
) -> EagleOneLayer | EagleThreeLayer:
    if layer_numbers not in (None, *LAYER_NUMBERS):
        raise OptionError("layer_numbers", layer_numbers, f"{', '.join(LAYER_NUMBERS)}, or null")
    _refuse_earlier(path)
    files = open_published(path)
    _check_fingerprint(files, target, trained_as)
    tensors = {name: tensor for name, tensor in files.tensors().items() if name not in OF_THE_TARGET}
    is_three = any(name.endswith("hidden_norm.weight") for name in tensors)
    if any(name.endswith(".0.linear.weight") for name in tensors):
        raise _refusal(files, "which holds Medusa's heads, for drafter=medusa")
    config = _config(files, tensors)
    if layer_numbers and not is_three:
        raise OptionError(
            "layer_numbers", layer_numbers, "null for an EAGLE-1 layer, which reads the last hidden state"
        )
    with files.place.loading():  # a config's values may break the layer
        layer = (
            _three(files, tensors, config, target, layer_numbers) if is_three else _one(files, tensors, config, target)
        )
    layer.name_or_path = path  # type: ignore[assignment]  # as for models of transformers
    return layer


def save_eagle(folder: Path, layer: EagleOneLayer | EagleThreeLayer, *, target: Target) -> None:
    """Write a layer in the original project's layout, its weights in bfloat16, and the fingerprint of its target."""
    tensors = {
        name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
        for name, tensor in _tensors_of(layer).items()
    }
    Export(config=_config_of(layer), tensors=tensors).save(folder)
    (folder / FACTS).write_text(json.dumps({"target_fingerprint": target.fingerprint}, indent=1) + "\n")


def export_eagle3(path: str, target: Target, *, name: str, layer_numbers: str | None) -> Export:
    """An EAGLE-3 layer in the original project's layout.

    Args:
        path: folder or hub name of the layer, in any of the layouts.
        target: the target that it was trained for.
        name: folder or hub name of the target.
        layer_numbers: as for `read_eagle`.

    Raises:
        OSError, ValueError: as by `read_eagle`; another kind of layer, or one with norms that the layout lacks.
    """
    layer = _read_three(path, target, layer_numbers)
    norms = [flag for flag, is_set in layer.flags.items() if is_set]
    norms += ["q_norm", "k_norm"] if isinstance(layer.config, Qwen3Config) else []
    if norms:
        allowed = "a layer without them; the format speculators has them"
        raise OptionError("path", path, allowed, f"whose {', '.join(norms)} the format lacks")
    config = {"architectures": ["LlamaForCausalLMEagle3"], **_config_of(layer), "base_model_name_or_path": name}
    speculative = {"method": "eagle3", "num_speculative_tokens": SPECULATIVE_TOKENS}
    return Export(config=config, tensors=_tensors_of(layer), speculative_config=speculative)


def export_eagle3_to_speculators(path: str, target: Target, *, name: str, layer_numbers: str | None) -> Export:
    """An EAGLE-3 layer as a folder of `speculators`.

    Args, errors: as for `export_eagle3`, without a limit on norms.
    """
    return _to_speculators(_read_three(path, target, layer_numbers), target, name)


def export_peagle_to_speculators(path: str, target: Target, *, name: str, layer_numbers: str | None) -> Export:
    """As `export_eagle3_to_speculators`, for a P-EAGLE layer."""
    return _to_speculators(read_peagle(path, target, layer_numbers=layer_numbers), target, name)


def _read_three(path: str, target: Target, layer_numbers: str | None) -> EagleThreeLayer:
    layer = read_eagle(path, target, layer_numbers=layer_numbers)
    if not isinstance(layer, EagleThreeLayer):
        raise OptionError("path", path, "an EAGLE-3 layer", "an EAGLE-1 layer")
    return layer


def _to_speculators(layer: EagleThreeLayer, target: Target, name: str) -> Export:
    return speculators_eagle3(
        _config_of(layer),
        _tensors_of(layer),
        name=name,
        architectures=[type(target.model.model).__name__],
        layers=list(layer.hidden_layers),
        speculative_tokens=SPECULATIVE_TOKENS,
    )


def _config_of(layer: EagleOneLayer | EagleThreeLayer) -> dict[str, Any]:
    """The config in the original project's layout."""
    config: dict[str, Any] = entries_of(layer.config) | {"bias": layer.fc.bias is not None}
    if isinstance(layer, EagleThreeLayer):
        config["draft_vocab_size"] = layer.lm_head.out_features
        config[LAYERS] = list(layer.hidden_layers)
        config |= {flag: value for flag, value in layer.flags.items() if value}
        config |= {} if layer.mask_token is None else {"mask_token_id": layer.mask_token}
        if layer.ends.hidden_size != layer.config.hidden_size:
            config["target_hidden_size"] = layer.ends.hidden_size
    return config


def _tensors_of(layer: EagleOneLayer | EagleThreeLayer) -> dict[str, Tensor]:
    """The tensors in the original project's layout."""
    return {name: tensor.contiguous() for name, tensor in layer.state_dict().items()}


def _one(files: PublishedFiles, tensors: dict[str, Tensor], config: Config, target: Target) -> EagleOneLayer:
    layer = EagleOneLayer(
        target,
        config,
        has_bias="fc.bias" in tensors,
        biases=_biases(tensors),
        own_embeddings="embed_tokens.weight" in tensors,
    )
    if config.hidden_size != layer.ends.hidden_size:
        raise _refusal(files, f"made for a hidden size of {config.hidden_size} instead of {layer.ends.hidden_size}")
    return _filled(layer, tensors, files)


def _three(
    files: PublishedFiles, tensors: dict[str, Tensor], config: Config, target: Target, layer_numbers: str | None
) -> EagleThreeLayer:
    tensors = {name.replace("layers.0.", "midlayer.", 1): tensor for name, tensor in tensors.items()}
    depth = num_decoder_layers(target.model.model)
    layers = _hidden_layers(files, depth, layer_numbers)
    if not all(0 <= layer <= depth for layer in layers):
        raise _refusal(
            files, f"which reads the hidden states {', '.join(map(str, layers))} of a target; this one has 0 to {depth}"
        )
    if "d2t" in tensors:
        _check_mapping(files, tensors, config, target)
    elif files.config.get("draft_vocab_size", config.vocab_size) != config.vocab_size:
        sizes = f"draft vocabulary of {files.config['draft_vocab_size']} tokens, of {config.vocab_size} in all,"
        raise _refusal(files, f"whose {sizes} has no d2t")
    elif config.vocab_size < target.vocabulary_size:
        raise _refusal(
            files, f"made for a vocabulary of {config.vocab_size} instead of {target.vocabulary_size} tokens"
        )
    if "mask_hidden" in tensors:
        tensors["mask_hidden"] = tensors["mask_hidden"].reshape(1, 1, -1)
    layer = EagleThreeLayer(
        target,
        config,
        hidden_layers=layers,
        draft_vocabulary=len(tensors["d2t"]) if "d2t" in tensors else None,
        biases=_biases(tensors),
        own_embeddings="embed_tokens.weight" in tensors,
        mask_token=_mask_token(files, tensors, target) if "mask_hidden" in tensors else None,
        **_flags(files),
    )
    return _filled(layer, tensors, files)


def _mask_token(files: PublishedFiles, tensors: Mapping[str, Tensor], target: Target) -> int:
    token = next((files.config[key] for key in MASK_TOKENS if files.config.get(key) is not None), None)
    own = tensors.get("embed_tokens.weight")
    known = TargetEnds(target).num_known if own is None else len(own)
    if not isinstance(token, int) or not 0 <= token < known:
        raise _refusal(files, f"whose mask token {token} has no embedding among {known}")
    return token


def _filled(layer: Any, tensors: dict[str, Tensor], files: PublishedFiles) -> Any:
    sizes = {"hidden size": layer.ends.hidden_size}
    return fill(layer, tensors, files=files, sizes=sizes, **layer.ends.like)


def _hidden_layers(files: PublishedFiles, depth: int, layer_numbers: str | None) -> tuple[int, ...]:
    """Indices of `hidden_states`; where the config names none, those of the original project."""
    config = files.config
    # SGLang, ModelOpt and DeepSpec, whose configs have these places, number outputs.
    of_outputs = (config.get("eagle_config") or {}).get(LAYERS) or config.get("target_layer_ids")
    named = config.get(LAYERS) or of_outputs
    if not named:
        if layer_numbers:
            raise OptionError("layer_numbers", layer_numbers, "null, since config.json names no layers")
        return 2, depth // 2, depth - 3
    whole = isinstance(named, list) and all(type(layer) is int for layer in named)
    if not whole or len(set(named)) < len(named):
        raise _refusal(files, f"whose layers are {named!r}, not a list of different whole numbers")
    from_outputs = layer_numbers == "outputs" or (layer_numbers is None and named is of_outputs)
    return tuple(layer + from_outputs for layer in named)


def _flags(files: PublishedFiles) -> dict[str, bool]:
    """Norm options of an EAGLE-3 layer."""
    given = {flag: files.config.get(flag) or False for flag in FLAGS}
    for flag, value in given.items():
        if not isinstance(value, bool):
            raise _refusal(files, f"whose config.json has {flag} {value!r}, not true or false")
    return given


def _config(files: PublishedFiles, tensors: Mapping[str, Tensor]) -> Config:
    """Config of the layer."""
    given = files.config.get("transformer_layer_config", files.config)
    for key in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        if type(given.get(key)) is not int or given[key] < 1:
            raise _refusal(files, f"whose config.json has {key} {given.get(key)!r}, not a whole number >= 1")
    theta = given.get("rope_theta", 1.0)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise _refusal(files, f"whose config.json has rope_theta {theta!r}, not a number > 0")
    if (number := given.get("num_hidden_layers", 1)) != 1:
        raise _refusal(files, f"of {number} layers, and only one is implemented")
    if others := set(given.get("layer_types") or ()) - {"full_attention"}:
        raise _refusal(files, f"whose layer is {', '.join(others)}, not full_attention")
    names = [*OF_LAYERS, "rope_parameters"]  # transformers 5 writes the latter for rope_theta and rope_scaling
    entries = {key: given[key] for key in names if key in given and key not in ("model_type", "layer_types")}
    if "rope_parameters" not in entries:
        entries.setdefault("rope_theta", 10000.0)  # the original project's default
    has_norms = any(name.endswith("q_norm.weight") for name in tensors)
    with files.place.loading():
        return Qwen3Config(**entries) if has_norms else LlamaConfig(**entries)


def _biases(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    return frozenset(kind for kind in "qkvo" if any(name.endswith(f"self_attn.{kind}_proj.bias") for name in tensors))


def _check_mapping(files: PublishedFiles, tensors: dict[str, Tensor], config: Config, target: Target) -> None:
    """Check d2t, and add t2d if the files lack it."""
    size = min(config.vocab_size, target.vocabulary_size)
    mapped = draft_vocabulary(tensors["d2t"], size, partial(_refusal, files))
    kept = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, mapped, True)
    if not torch.equal(tensors.setdefault("t2d", kept), kept):
        raise _refusal(files, "whose t2d marks other tokens than d2t maps to")


def _check_fingerprint(files: PublishedFiles, target: Target, trained_as: str) -> None:
    file = files.folder / FACTS
    with files.place.loading():
        found = json.loads(file.read_text())["target_fingerprint"] if file.is_file() else target.fingerprint
    if found != target.fingerprint:
        raise OtherTargetError(
            files.place.option,
            files.path,
            f"a layer trained for this one: `train drafter={trained_as} target=...`",
            f"made for the target with the fingerprint {found}, and this one's is {target.fingerprint} (other weights, "
            "or a dtype that rounds them)",
            made_by=f"train drafter={trained_as}",
        )


def _refuse_earlier(path: str) -> None:
    folder = Path(path).expanduser()
    earlier = any((folder / name).is_file() for name in ("eagle.json", "layer.json"))
    if earlier and not (folder / "config.json").is_file():
        allowed = "a published drafter made for this target, or a folder that training wrote"
        raise OptionError("path", path, allowed, "which an earlier version trained, with a layer of another shape")


def _refusal(files: PublishedFiles, problem: str) -> OptionError:
    return OptionError(files.place.option, files.path, TRAINED, problem)
