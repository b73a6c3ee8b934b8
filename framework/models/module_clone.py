"""Clones of modules with some children replaced; parameters, buffers and settings are shared, originals unchanged."""

import copy
from typing import Any

from torch import nn


def clone(module: Any, children: dict[str, nn.Module]) -> Any:
    """Clone of a module with some children replaced.

    Raises:
        ValueError: the module is on several devices: the hooks that move tensors between them are bound to the
            original and its children.
    """
    if hasattr(module, "_hf_hook"):
        raise ValueError(
            f"target.device_map spreads {type(module).__name__} over several GPUs, and no part of it can be replaced "
            "there, as layer_skip and encoder-decoder models require; set it to null"
        )
    made = copy.copy(module)
    made._modules = module._modules | children
    return made


def clone_replacing(module: Any, path: list[str], replacement: nn.Module) -> Any:
    """Clone of a module with the submodule at a path replaced; submodules off the path are shared."""
    if not path:
        return replacement
    name, *rest = path
    return clone(module, {name: clone_replacing(getattr(module, name), rest, replacement)})
