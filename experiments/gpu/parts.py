"""The embedded models, and the drafters of conf/drafter, built without Hydra."""

import re
from collections.abc import Mapping
from functools import partial, reduce
from itertools import islice
from pkgutil import resolve_name
from typing import Any

import torch
import yaml

from experiments.corpora.standard_library import StandardLibrary
from experiments.gpu.plain_options import CONF, ROOT
from framework.core.drafter import Drafter
from framework.models.pretrained import load_target
from framework.models.target import Target

ZOO = ROOT / "experiments" / "zoo"
REFERENCE = re.compile(r"\$\{(zoo:|target\.)([\w/.]+)\}")


def node_of(name: str) -> dict[str, Any]:
    """A drafter's yaml, with those of its defaults list inserted."""
    node = yaml.safe_load((CONF / "drafter" / f"{name}.yaml").read_text(encoding="utf-8"))
    for entry in node.pop("defaults", []):
        if isinstance(entry, dict):
            for group, choice in entry.items():
                *path, last = group.removeprefix("/drafter@").split(".")
                parent = reduce(lambda inner, key: inner.setdefault(key, {}), path, node)
                parent[last] = node_of(choice) | parent.get(last, {})
    return node


# The embedded target has no layer for `mtp`; a path of ??? is one that the user gives.
DRAFTERS = sorted(
    path.stem
    for path in (CONF / "drafter").glob("*.yaml")
    if path.stem != "mtp" and node_of(path.stem).get("path") != "???"
)


def embedded_target(device: torch.device, dtype: str, *, path: str = "target") -> Target:
    """An embedded target; `path` is its folder below experiments/zoo."""
    return load_target(path=str(ZOO / path), dtype=dtype, device=str(device), attention="auto", context=None)


def drafter_named(name: str, target: Target, **options: Any) -> Drafter:
    """The drafter of a yaml in conf/drafter, with its own options or others."""
    dtype = str(target.model.model.dtype).removeprefix("torch.")
    factory = built({**node_of(name), **options}, {"dtype": dtype, "attention": "auto"})
    return factory(target=target)


def built(node: Any, target: Mapping[str, str]) -> Any:
    """Object that a node describes by `_target_` and `_partial_`; references to embedded models and target are read."""
    if isinstance(node, str) and (found := REFERENCE.fullmatch(node)):
        kind, name = found.groups()
        return str(ZOO / name) if kind == "zoo:" else target[name]
    if isinstance(node, list):
        return [built(each, target) for each in node]
    if not isinstance(node, dict):
        return node
    values = {key: built(value, target) for key, value in node.items() if key not in ("_partial_", "_convert_")}
    if "_target_" not in values:
        return values
    make = partial(resolve_name(values.pop("_target_")), **values)
    return make if node.get("_partial_") else make()


def library_prompts(target: Target, lengths: list[int]) -> list[list[int]]:
    """The first tokens of held-out files of Python's library, as many of each as given."""
    texts = islice(StandardLibrary(split="held_out").texts(), len(lengths))
    return [
        target.tokenizer.encode(each.text[: 8 * length])[:length] for each, length in zip(texts, lengths, strict=True)
    ]
