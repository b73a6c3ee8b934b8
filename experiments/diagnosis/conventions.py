"""Conventions that files of a drafter do not state: each as a change of its config, tensors or options.

H hidden, V vocabulary, Vd draft vocabulary.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from framework.heads.published_dflash import spread_layers
from framework.heads.published_eagle import LAYER_NUMBERS, LAYERS
from framework.heads.published_files import PICKLED, SAFE, Export, PublishedFiles
from framework.heads.published_medusa import ORIGINAL_FILE

WEIGHTS = tuple(pattern[1:] for pattern in (*SAFE, *PICKLED))
OF_MEDUSA = re.compile(r"((?:medusa_heads\.|blocks\.|lm_heads\.)?)(\d+)(\..*)")
# Entries of config.json that number the target's layers.
LAYER_PLACES = (
    (LAYERS,),
    ("eagle_config", LAYERS),
    ("target_layer_ids",),
    ("dflash_config", "target_layer_ids"),
    ("aux_hidden_state_layer_ids",),
)


@dataclass(frozen=True)
class Setting:
    """A drafter's files and options under one combination of conventions.

    Attributes:
        names: the conventions that differ from the given ones; (): none.
        config: contents of config.json.
        tensors: by name.
        options: options of the drafter's yaml.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]
    names: tuple[str, ...] = ()

    def entry(self, *path: str) -> Any:
        """An entry of config.json; None: absent."""
        found: Any = self.config
        for key in path:
            found = (found or {}).get(key)
        return found

    def with_config(self, name: str, value: Any, *path: str) -> "Setting":
        """The setting with another entry of config.json."""
        return self._with(name, config=_put(self.config, value, *path))

    def with_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> "Setting":
        """The setting with other tensors of these names."""
        return self._with(name, tensors={**self.tensors, **tensors})

    def with_option(self, name: str, option: str, value: Any) -> "Setting":
        """The setting with another value of an option."""
        return self._with(name, options={**self.options, option: value})

    def _with(self, name: str, **parts: Any) -> "Setting":
        return replace(self, names=(*self.names, name), **parts)

    def remedies(self, given: "Setting") -> list[str]:
        """Overrides, lines of config.json and tensors that lead from the given setting to this one."""
        changed = [key for key, value in self.options.items() if given.options[key] != value]
        found = [f"drafter.{key}={self.options[key]}" for key in changed]
        keys = [
            key for key, value in self.config.items() if given.config.get(key, False) != value
        ]  # absent flags are false
        found += [f'in config.json, "{key}": {json.dumps(self.config[key])}' for key in keys]
        names = [name for name, tensor in self.tensors.items() if given.tensors.get(name) is not tensor]
        names += [name for name in given.tensors if name not in self.tensors]
        if names:
            some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            found.append(f"other tensors {some}, which out=FOLDER writes")
        return found

    def save(self, folder: Path, files: PublishedFiles, *, given: "Setting", link: bool = False) -> None:
        """Write the files to a folder.

        Args:
            folder: is created if missing.
            files: the given files; unchanged ones are copied.
            given: the setting of these files.
            link: whether to link them instead.
        """
        has_weights = self.tensors is not given.tensors
        folder.mkdir(parents=True, exist_ok=True)
        for file in files.folder.iterdir():
            is_weights = file.suffix in WEIGHTS or file.name.endswith(".index.json")
            if file.is_file() and file.name != "config.json" and not (has_weights and is_weights):
                (os.symlink if link else shutil.copyfile)(file.resolve(), folder / file.name)
        if has_weights:
            tensors = {
                name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in self.tensors.items()
            }
            Export(config=dict(self.config), tensors=tensors, stem=stem_of(files, "model")).save(folder)
        else:
            (folder / "config.json").write_text(json.dumps(self.config, indent=1) + "\n")


def stem_of(files: PublishedFiles, default: str) -> str:
    """Name of the files with the weights, without suffix."""
    return ORIGINAL_FILE if any(files.folder.glob(f"{ORIGINAL_FILE}.*")) else default


def read_setting(files: PublishedFiles, options: Mapping[str, Any]) -> Setting:
    """The setting that a checkpoint and the drafter's options give.

    Raises:
        OSError: the files cannot be read.
    """
    return Setting(config=files.config, tensors=files.tensors(stem=stem_of(files, "*")), options=options)


Variations = Callable[[Setting, int], Iterator[Setting]]
"""Settings that differ from one in a single convention; the number is that of the target's layers."""


def eagle_variations(now: Setting, depth: int) -> Iterator[Setting]:
    """Conventions of EAGLE-1, 2 and 3."""
    is_three = any(name.endswith("hidden_norm.weight") for name in now.tensors)
    if is_three:
        yield from layer_numbers(now, depth)
        yield from norm_flags(now)
        yield from draft_vocabularies(now)
    yield from orders(now, is_three=is_three)


def dflash_variations(now: Setting, depth: int) -> Iterator[Setting]:
    """Conventions of DFlash and DSpark."""
    unnamed = ("dflash_config", "target_layer_ids"), spread_layers(depth, now.config.get("num_hidden_layers", 1))
    yield from layer_numbers(now, depth, unnamed=unnamed)
    yield from draft_vocabularies(now)
    if "speculators_model_type" in now.config:
        anchor, is_dspark = "sample_from_anchor", now.config["speculators_model_type"] == "dspark"
        flipped = not now.config.get(anchor, is_dspark)
        yield now.with_config(f"the first position predicts {'a token' if flipped else 'none'}", flipped, anchor)


def medusa_variations(now: Setting, depth: int) -> Iterator[Setting]:
    """The heads counted from the next token, which the target itself predicts, instead of the one after it."""
    found = {name: OF_MEDUSA.fullmatch(name) for name in now.tensors}
    if max((int(match[2]) for match in found.values() if match), default=0):
        kept = {}
        for name, match in found.items():
            if match is None:
                kept[name] = now.tensors[name]
            elif int(match[2]):
                kept[f"{match[1]}{int(match[2]) - 1}{match[3]}"] = now.tensors[name]
        yield replace(now, names=(*now.names, "positions one earlier: without the first head"), tensors=kept)


def mtp_variations(now: Setting, depth: int) -> Iterator[Setting]:
    """The predicted state fed back before or after its norm."""
    other = "before_norm" if now.options["chained"] == "after_norm" else "after_norm"
    yield now.with_option(f"states fed back {other.replace('_', ' ')}", "chained", other)


def layer_numbers(
    now: Setting, depth: int, *, unnamed: tuple[tuple[str, ...], list[int]] | None = None
) -> Iterator[Setting]:
    """The target's layers one lower and one higher, and those of the original EAGLE-3.

    Args:
        unnamed: place and numbers of the layers that a config without them means; None: those of the original EAGLE-3.
    """
    original = [2, depth // 2, depth - 3]
    place, numbers = unnamed or ((LAYERS,), original)
    for known in LAYER_PLACES:
        if found := now.entry(*known):
            place, numbers = known, list(found)
            break
    convention = now.options.get("layer_numbers") or LAYER_NUMBERS[place != (LAYERS,)]
    for shift, by in ((-1, "lower"), (1, "higher")):
        shifted = [number + shift for number in numbers]
        name = f"layers one {by}: {', '.join(map(str, shifted))}"
        meant = LAYER_NUMBERS[shift > 0]
        if "layer_numbers" in now.options and now.entry(*place) and convention != meant:
            yield now.with_option(f"{name}, as layer_numbers={meant}", "layer_numbers", meant)
        elif min(shifted) >= 0 and max(shifted) <= depth:
            yield now.with_config(name, shifted, *place)
    if place == (LAYERS,) and convention == LAYER_NUMBERS[0] and numbers != original and depth > 3:
        yield now.with_config(f"layers {', '.join(map(str, original))}, the original project's", original, LAYERS)


def norm_flags(now: Setting) -> Iterator[Setting]:
    """Each option of norms flipped, where the tensors allow it."""
    of_tensors = {"norm_before_fc": "input_norm.weight", "fc_norm": "fc_norm.0.weight"}
    feeds_back = not any(name.endswith("mask_hidden") for name in now.tensors)  # P-EAGLE never reads its own states
    for flag in ("norm_before_residual", *(["norm_output"] if feeds_back else []), *of_tensors):
        flipped = not now.config.get(flag)
        if flag not in of_tensors or (of_tensors[flag] in now.tensors) is flipped:
            yield now.with_config(f"{flag}={str(flipped).lower()}", flipped, flag)


def orders(now: Setting, *, is_three: bool) -> Iterator[Setting]:
    """Embedding and state in the other order where they are joined: in q, k and v of EAGLE-3, in fc of EAGLE-1."""
    joined = r".*self_attn\.[qkv]_proj\.weight" if is_three else r".*\bfc\.weight"
    swapped = {}
    for name, weight in now.tensors.items():
        if re.fullmatch(joined, name):
            hidden = _hidden_size(now) if is_three else len(weight)
            swapped[name] = torch.cat([weight[:, hidden:], weight[:, :hidden]], 1)
    if swapped:
        yield now.with_tensors("embedding and state in the other order", swapped)


def draft_vocabularies(now: Setting) -> Iterator[Setting]:
    """The draft vocabulary by other readings of d2t and t2d: offsets, token ids, or the tokens that t2d marks."""
    output, d2t, t2d = (now.tensors.get(name) for name in ("lm_head.weight", "d2t", "t2d"))
    size = now.config.get("transformer_layer_config", now.config).get("vocab_size")
    if size is None or output is None or (d2t is None and len(output) >= size):
        return
    place, readings = torch.arange(len(output)), {}
    if d2t is not None:
        readings["d2t as token ids, not offsets"] = d2t
    else:
        readings[f"the first {len(output)} tokens"] = place
    if t2d is not None:
        readings["d2t made from t2d"] = t2d.nonzero().squeeze(1)
    for name, ids in readings.items():
        fits = len(ids) == len(output) == len(ids.unique()) and ids.min() >= 0 and ids.max() < size
        if fits and (d2t is None or not torch.equal(ids, d2t + place)):
            marked = torch.zeros(size, dtype=torch.bool).index_fill(0, ids, True)
            yield now.with_tensors(name, {"d2t": ids - place, "t2d": marked})


def _hidden_size(now: Setting) -> int:
    return next(len(tensor) for name, tensor in now.tensors.items() if name.endswith("hidden_norm.weight"))


def _put(config: Mapping[str, Any], value: Any, *path: str) -> dict[str, Any]:
    key, *rest = path
    return {**config, key: _put(config[key], value, *rest) if rest else value}
