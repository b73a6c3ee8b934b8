"""One Transformer layer over mask tokens: all positions of a draft from one pass over the target's last state.

D positions, H hidden, V vocabulary; `...` stands for any leading axes.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from framework.fitted_part import Accuracies, load_part, save_part
from framework.shallow_layer import ShallowLayer
from framework.target import Target

FILES = "layer"  # and what they end with


class ParallelLayer(ShallowLayer):
    """Scores the D tokens behind pending at once, each from the same state and a mask token of its own.

    The first slot holds the state that the target's output layer made pending from, and pending's embedding; the others
    hold mask tokens. Each sees itself and those before it. What comes out is added to the state, and the target's own
    output layer scores it: no position knows which token is drafted at another one (DART; Liu et al., 2026, 2601.19278,
    whose layer sees the states of the whole text besides).
    """

    def __init__(self, target: Target, *, num_positions: int):
        """
        Args:
            target: whose embeddings and output layer are used; the layer gets their dtype and device.
            num_positions: D >= 1.
        """
        super().__init__(target)
        self.masks = nn.Parameter(torch.randn(num_positions, self.hidden_size) * 0.1)
        self.change = nn.Linear(self.hidden_size, self.hidden_size, bias=False)
        nn.init.zeros_(self.change.weight)  # at first every position scores as the target's output layer does
        self.to(self.join.weight)

    @property
    def num_positions(self) -> int:
        return len(self.masks)

    def forward(self, hidden: Tensor, pending: Tensor, depth: int | None = None) -> Tensor:
        """
        Args:
            hidden: [..., H] what the target's output layer read when it made the pending token.
            pending: [...] int64.
            depth: how many positions are wanted, the first ones; None is all D.

        Returns:
            [..., depth, V] logits before temperature.
        """
        masks, device = self.masks[:depth], hidden.device
        hidden = hidden.to(masks)  # the output layer's device, which may be another
        first = self.joined(hidden, pending)
        states = torch.cat([(first + masks[0]).unsqueeze(-2), masks[1:].expand(*first.shape[:-1], -1, -1)], -2)
        # Every slot sees itself and those before it.
        states = self.passed(states, partial(scaled_dot_product_attention, is_causal=True))
        return self.scored(hidden.unsqueeze(-2) + self.change(self.last_norm(states))).to(device)


def save_layer(folder: Path, layer: ParallelLayer, *, target: Target, accuracies: Accuracies) -> None:
    """Write the layer, whose target it is for, and the accuracies that its tree is built from."""
    save_part(folder, layer, name=FILES, target=target, facts={"accuracies": accuracies})


def load_layer(path: str, target: Target) -> tuple[ParallelLayer, Accuracies]:
    """Read what `save_layer` wrote.

    Raises:
        OSError: there is no layer in the folder, or it is damaged.
        ValueError: it was trained for another target.
    """

    def build(facts: dict[str, Any], weights: dict[str, Tensor]) -> ParallelLayer:
        layer = ParallelLayer(target, num_positions=len(weights["masks"]))
        if len(facts["accuracies"]) != layer.num_positions:
            raise ValueError(f"{FILES}.json has accuracies of {len(facts['accuracies'])} of {layer.num_positions}")
        return layer

    layer, facts = load_part(path, target, name=FILES, drafter="parallel", known={"accuracies"}, build=build)
    return layer, facts["accuracies"]
