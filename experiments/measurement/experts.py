"""Number of distinct experts touched by a target pass.

Their weights dominate the memory traffic of small passes.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TouchedExperts:
    """Distinct experts, summed over layers and passes.

    Attributes:
        touched: number of distinct experts, summed over layers and passes.
        layers: number of (layer, pass) pairs in that sum; 0 for a model without experts.
    """

    touched: int = 0
    layers: int = 0

    def __add__(self, other: "TouchedExperts") -> "TouchedExperts":
        return TouchedExperts(self.touched + other.touched, self.layers + other.layers)

    @property
    def per_layer(self) -> float | None:
        """Mean over layers and passes; None for a model without experts."""
        return self.touched / self.layers if self.layers else None


NO_EXPERTS = TouchedExperts()


class ExpertCounter(ExitStack):
    """Context manager that records the experts chosen per layer, from the indices that transformers passes to them."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._latest: dict[str, Tensor] = {}
        for name, module in model.named_modules():
            if name.split(".")[-1] == "experts":
                hook = module.register_forward_pre_hook(partial(self._note, name), with_kwargs=True)
                self.callback(hook.remove)

    def latest_pass(self) -> TouchedExperts:
        """Experts touched in the model's latest forward pass."""
        counts = [index.unique().numel() for index in self._latest.values()]
        return TouchedExperts(sum(counts), len(counts))

    def _note(self, layer: str, module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        for given in (*arguments, *named.values()):
            if isinstance(given, Tensor) and given.dtype in (torch.int64, torch.int32):
                self._latest[layer] = given
                return
