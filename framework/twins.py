"""Twins of modules: the same parameters, buffers and settings, and some other children. What they are made of stays as
it is."""

import copy
from typing import Any

from torch import nn


def twin(module: Any, children: dict[str, nn.Module]) -> Any:
    """A module with some other children.

    Raises:
        ValueError: the module is on several devices: what moves tensors between them is bound to it and its children.
    """
    if hasattr(module, "_hf_hook"):
        raise ValueError(
            f"target.device_map spreads {type(module).__name__} over several GPUs, and no part of it can be exchanged "
            "there, as layer_skip and encoder-decoder models need; set it to null"
        )
    made = copy.copy(module)
    made._modules = module._modules | children
    return made


def replaced(module: Any, path: list[str], replacement: nn.Module) -> Any:
    """A twin with another module at the end of a path; what does not lie on the path is shared."""
    if not path:
        return replacement
    name, *rest = path
    return twin(module, {name: replaced(getattr(module, name), rest, replacement)})
