"""DART's layer: one Transformer layer over mask tokens that scores all positions of a draft in one pass.

D positions, H hidden, V vocabulary; `...` stands for any leading axes.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from framework.heads.draft_layer import DraftLayer
from framework.heads.head_checkpoint import Accuracies, load_part, save_part
from framework.models.target import Target

FILES = "layer"  # file name without suffix


class DartLayer(DraftLayer):
    """Scores the D tokens after pending in parallel, from one state and one mask token per position.

    The first slot joins pending's embedding with the state from which the target's output layer scored pending, and
    adds a mask token; the other slots hold mask tokens. Attention is causal. The layer's output is added to the state
    and scored by the target's own output layer. No position knows the tokens drafted at other positions (DART; Liu et
    al., 2026, 2601.19278, whose layer also attends to the states of the whole text).
    """

    def __init__(self, target: Target, *, num_positions: int):
        """
        Args:
            target: provides the embeddings and the output layer; the layer gets the output layer's dtype and device.
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
            hidden: [..., H] input of the target's output layer that scored the pending token.
            pending: [...] int64 pending tokens.
            depth: number of positions to score, from the first on; None: all D.

        Returns:
            [..., depth, V] logits before temperature.
        """
        masks, device = self.masks[:depth], hidden.device
        hidden = hidden.to(masks)  # the output layer's device, which may be another
        first = self.joined(hidden, pending)
        states = torch.cat([(first + masks[0]).unsqueeze(-2), masks[1:].expand(*first.shape[:-1], -1, -1)], -2)
        states = self.passed(states, partial(scaled_dot_product_attention, is_causal=True))
        return self.scored(hidden.unsqueeze(-2) + self.change(self.last_norm(states))).to(device)


def save_layer(folder: Path, layer: DartLayer, *, target: Target, accuracies: Accuracies) -> None:
    """Write the layer, the fingerprint of its target, and the accuracies that its tree is built from."""
    save_part(folder, layer, name=FILES, target=target, facts={"accuracies": accuracies})


def load_layer(path: str, target: Target) -> tuple[DartLayer, Accuracies]:
    """Read a layer and its accuracies from a folder of `save_layer`.

    Raises:
        OSError: the folder holds no layer, or a damaged one.
        ValueError: the layer was trained for another target.
    """

    def build(facts: dict[str, Any], weights: dict[str, Tensor]) -> DartLayer:
        layer = DartLayer(target, num_positions=len(weights["masks"]))
        if len(facts["accuracies"]) != layer.num_positions:
            raise ValueError(f"{FILES}.json has accuracies of {len(facts['accuracies'])} of {layer.num_positions}")
        return layer

    layer, facts = load_part(path, target, name=FILES, drafter="dart", known={"accuracies"}, build=build)
    return layer, facts["accuracies"]
