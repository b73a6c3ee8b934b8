"""Every drafter with a yaml, built for a tiny target, so that tests and proofs take seconds."""

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors.torch import save_file
from torch import nn
from transformers import Qwen3Config

from experiments.config.builders import DrafterFactory, build
from framework.conformance.tiny_models import save_tiny, tiny_other_tokenizer
from framework.core.drafter import Drafter
from framework.drafting.layer_set import LayerSet, save_layer_set
from framework.heads.dflash_layers import DflashLayers
from framework.heads.draft_layer import TargetEnds
from framework.heads.eagle_layer import EagleOneLayer, EagleThreeLayer
from framework.heads.medusa_heads import MedusaHeads, save_heads
from framework.heads.published_eagle import save_eagle
from framework.models.encoder_decoder import find_blocks, num_decoder_layers
from framework.models.target import Target
from framework.training.eagle_training import layer_config

FOLDER = Path(__file__).parents[2] / "conf" / "drafter"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def tiny_factory(name: str, vocabulary: int) -> DrafterFactory:
    """Return the factory described by a drafter's yaml, for tiny targets with this vocabulary size."""
    return tiny_factory_of(drafter_node(name), vocabulary)


def drafter_node(name: str) -> DictConfig:
    """Load a drafter's yaml, with the yamls of the drafters in its defaults list inserted."""
    node = OmegaConf.load(FOLDER / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    for entry in node.pop("defaults", []):
        if isinstance(entry, DictConfig):
            ((group, choice),) = entry.items()
            OmegaConf.update(node, str(group).removeprefix("/drafter@"), drafter_node(choice))
    return node


def tiny_factory_of(node: DictConfig, vocabulary: int) -> DrafterFactory:
    """Return the factory of a config node, with embedded models and the standard library replaced by tiny ones."""
    settings = OmegaConf.to_container(node, resolve=False)

    def factory(*, target: Target) -> Drafter:
        root = {
            "target": {"dtype": "float32", "attention": "sdpa"},
            "drafter": _made_tiny(settings, vocabulary, target),
        }
        return build(OmegaConf.create(root).drafter)(target=target)

    return factory


def save_tiny_heads(folder: Path, target: Target) -> Path:
    """Write random Medusa heads for a target, with accuracies that yield a tree of several depths and ranks."""
    ranks = min(target.vocabulary_size, 4)
    heads = MedusaHeads(target, num_heads=3, output="mapped")
    with torch.no_grad():
        for number, parameter in enumerate(heads.parameters()):
            random = torch.Generator().manual_seed(number)
            parameter.add_(torch.randn(parameter.shape, generator=random).to(parameter) * 0.3)
    accuracies = [[0.6 / (head + rank) for rank in range(ranks)] for head in range(1, 4)]
    save_heads(folder, heads, target=target, accuracies=accuracies)
    return folder


def save_tiny_eagle(folder: Path, target: Target) -> Path:
    """Write a random EAGLE-1 layer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_eagle(folder, EagleOneLayer(target, layer_config(target)), target=target)
    return folder


def save_tiny_peagle(folder: Path, target: Target) -> Path:
    """Write a random layer of P-EAGLE and DART."""
    return save_tiny_eagle3(folder, target, mask_token=1)


def save_tiny_eagle3(folder: Path, target: Target, *, mask_token: int | None = None) -> Path:
    """Write a random EAGLE-3 layer that drafts every other token of the vocabulary; with a mask token, a P-EAGLE."""
    layers, kept = (0, 1, num_decoder_layers(target.model.model)), torch.arange(0, target.vocabulary_size, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = EagleThreeLayer(
            target, layer_config(target), hidden_layers=layers, draft_vocabulary=len(kept), mask_token=mask_token
        )
        if layer.mask_hidden is not None:
            nn.init.normal_(layer.mask_hidden)
    layer.draft_from(kept)
    save_eagle(folder, layer, target=target)
    return folder


def save_tiny_dflash(folder: Path, target: Target) -> Path:
    """Write a random DFlash drafter with a block of four tokens, in the original layout."""
    ends, depth = TargetEnds(target), num_decoder_layers(target.model.model)
    sizes = {"hidden_size": ends.hidden_size, "intermediate_size": 24, "head_dim": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": target.vocabulary_size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = DflashLayers(Qwen3Config(**sizes, **heads), num_features=2 * ends.hidden_size)
    own = {"mask_token_id": 1, "target_layer_ids": [0, depth - 1]}
    folder.mkdir(parents=True, exist_ok=True)
    config = sizes | heads | {"model_type": "qwen3", "block_size": 4, "dflash_config": own}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(layers.state_dict(), folder / "model.safetensors")
    return folder


def save_tiny_mtp(folder: Path, target: Target) -> Path:
    """Write a layer for multi-token prediction in MiMo's layout: the target's last layer with a random projection."""
    blocks, width = find_blocks(target.model.model), TargetEnds(target).hidden_size
    assert blocks is not None, "the target has no list of layers"
    layer = {name: tensor.clone() for name, tensor in blocks[1][-1].state_dict().items()}
    layer |= {f"{name}_layernorm.weight": torch.ones(width) for name in ("token", "hidden", "final")}
    layer["input_proj.weight"] = torch.randn(width, 2 * width, generator=torch.Generator().manual_seed(0)) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    tensors = {f"model.mtp_layers.0.{name}": tensor for name, tensor in layer.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


# Models differ: otherwise nothing that the hierarchical drafter's inner drafter proposes is ever rejected.
SEEDS = {"drafter": 7, "drafter_small": 13, "drafter_large": 14}
# Embedded models trained for a target, each with the function that writes a random one.
FITTED = {"medusa": save_tiny_heads, "dart": save_tiny_peagle, "eagle3": save_tiny_eagle3}
# Drafters that are published and not embedded, by the ends of their classes' paths.
PUBLISHED = {
    "dflash.Dflash": save_tiny_dflash,
    "eagle.Eagle": save_tiny_eagle,
    "mtp.Mtp": save_tiny_mtp,
    "peagle.Peagle": save_tiny_peagle,
}


def _made_tiny(value: Any, vocabulary: int, target: Target) -> Any:
    if isinstance(value, str) and value.startswith("${zoo:"):
        name = value.removeprefix("${zoo:").removesuffix("}")
        if name == "layer_skip.yaml":
            return _tiny_layers(target)
        if name in FITTED:
            return _written(FITTED[name], name, target)
        return _tiny_folder(name, vocabulary)
    if not isinstance(value, dict):
        return value
    made = {key: _made_tiny(item, vocabulary, target) for key, item in value.items()}
    for end, save in PUBLISHED.items():
        if made.get("path") in (None, "???") and str(made.get("_target_")).endswith(end):
            made["path"] = _written(save, end, target)
    if str(made.get("_target_")).endswith("StandardLibrary"):
        made["folder"] = _tiny_library()
    if str(made.get("_target_")).endswith("Online"):
        made["window"] = 64  # fits the context of tiny models
    if str(made.get("_target_")).endswith("load_other_model"):
        made["path"] = _tiny_other_folder(vocabulary)
    return made


def _written(save: Callable[[Path, Target], Path], name: str, target: Target) -> str:
    """Folder of what `save` writes for a target, once: a target shared by processes has no whole tensors to write."""
    folder = _temporary() / f"{name}-{target.fingerprint}"
    return str(folder if folder.exists() else save(folder, target))


@cache
def _temporary() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="outrider-tiny-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _tiny_folder(name: str, vocabulary: int) -> str:
    return str(save_tiny(_temporary() / f"{name}-{vocabulary}", vocabulary=vocabulary, seed=SEEDS[name]))


@cache
def _tiny_other_folder(vocabulary: int) -> str:
    tokenizer = tiny_other_tokenizer(vocabulary)
    folder = _temporary() / f"other-{vocabulary}"
    return str(save_tiny(folder, vocabulary=len(tokenizer), tokenizer=tokenizer, seed=5))


def _tiny_layers(target: Target) -> str:
    """Write a layer set that skips the last attention and the first MLP."""
    num_layers = num_decoder_layers(target.model.model)
    path = _temporary() / f"layers-{target.fingerprint}.yaml"
    save_layer_set(path, LayerSet(num_layers, (num_layers - 1,), (0,)), fingerprint=target.fingerprint, facts={})
    return str(path)


@cache
def _tiny_library() -> str:
    """Write a library of three files; their words use the first letters, which tiny vocabularies contain."""
    folder = _temporary() / "library"
    folder.mkdir()
    for number, name in enumerate(("argparse", "cabaa", "bacca")):
        words = [f"ab ca{'b' * (i % 3)} a{'c' * (i % number if number else 1)} def x return\n" for i in range(200)]
        (folder / f"{name}.py").write_text("".join(words))
    return str(folder)
