"""One Transformer layer over mask tokens: all positions of a draft from one pass over the target's last state.

D positions, H hidden, V vocabulary; `...` stands for any leading axes.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.fitted_part import Accuracies, load_part, save_part
from framework.target import Target

FILES = "layer"  # and what they end with
HEAD_WIDTH = 64  # of the attention


class ParallelLayer(nn.Module):
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
        super().__init__()
        embeddings, output = target.model.model.get_input_embeddings(), target.model.model.get_output_embeddings()
        self._width, hidden_size = target.vocabulary_size, output.weight.shape[1]
        self._last_known = embeddings.weight.shape[0] - 1
        self._num_heads = hidden_size // HEAD_WIDTH if hidden_size % HEAD_WIDTH == 0 else 1
        self.join = nn.Linear(hidden_size + embeddings.weight.shape[1], hidden_size, bias=False)
        self.masks = nn.Parameter(torch.randn(num_positions, hidden_size) * 0.1)
        self.attention_norm, self.mlp_norm, self.last_norm = (nn.RMSNorm(hidden_size) for _ in range(3))
        self.attention_in = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.attention_out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.mlp_in = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.mlp_out = nn.Linear(4 * hidden_size, hidden_size, bias=False)
        self.change = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.zeros_(self.change.weight)  # at first every position scores as the target's output layer does
        self.to(output.weight)
        # In functions, so that the target's layers do not become parts of this module.
        self._embedded: Callable[[Tensor], Tensor] = lambda tokens: embeddings(tokens)
        self._scored: Callable[[Tensor], Tensor] = lambda states: output(states.to(output.weight.dtype))

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
        embedded = self._embedded(pending.clamp(min=0, max=self._last_known)).to(masks)
        first = self.join(torch.cat([hidden, embedded], -1))
        states = torch.cat([(first + masks[0]).unsqueeze(-2), masks[1:].expand(*first.shape[:-1], -1, -1)], -2)
        states = states + self._attended(self.attention_norm(states))
        states = states + self.mlp_out(functional.silu(self.mlp_in(self.mlp_norm(states))))
        return self._scored(hidden.unsqueeze(-2) + self.change(self.last_norm(states)))[..., : self._width].to(device)

    def _attended(self, states: Tensor) -> Tensor:
        """[..., D, H]: every slot sees itself and those before it."""
        # [..., heads, D, H / heads] each
        query, key, value = (
            each.unflatten(-1, (self._num_heads, -1)).transpose(-3, -2)
            for each in self.attention_in(states).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(seen.transpose(-3, -2).flatten(-2))


def save_layer(folder: Path, layer: ParallelLayer, *, target: Target, accuracies: Accuracies) -> None:
    """Write the layer, whose target it is for, and the accuracies that its tree is built from."""
    save_part(folder, layer, name=FILES, target=target, accuracies=accuracies, made_with={})


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

    return load_part(path, target, name=FILES, drafter="parallel", knobs=set(), build=build)
