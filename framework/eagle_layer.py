"""EAGLE's layer: from the target's state and the token that follows to the target's next state, before it is known.

B rows, M pairs read, W seen, H hidden.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from framework.fitted_part import load_part, save_part
from framework.shallow_layer import ShallowLayer
from framework.target import Target

FILES = "eagle"  # and what they end with
ROTARY_BASE = 10_000

Keep = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes in the keys and values of a pass, [B, heads, M, D] each, and returns all that are seen, [B, heads, W, D]."""


class EagleLayer(ShallowLayer):
    """Reads pairs of a state and the token behind it, and predicts the state at that token, which scores the next one.

    A state is what the target's output layer reads. The token that was drawn is known to the layer, so that nothing of
    what follows is left open by the draw (EAGLE; Li et al., 2024, 2401.15077). Predicted states may stand in for
    those of the target, token after token.
    """

    def __init__(self, target: Target):
        """
        Args:
            target: whose embeddings and output layer are used; the layer gets their dtype and device.
        """
        super().__init__(target)
        self.predict = nn.Linear(self.hidden_size, self.hidden_size, bias=False).to(self.join.weight)

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, keep: Keep, mask: Tensor | None) -> Tensor:
        """
        Args:
            states: [B, M, H] of the target, or predicted.
            tokens: [B, M] int64 that follow.
            positions: [1 or B, M] int64: places of the pairs in the text.
            keep: knows the keys and values of pairs that were read before.
            mask: [1 or B, 1, M, W]: added to the scores, or bool: what each pair sees; None is everything.

        Returns:
            [B, M, H] the states predicted at these tokens.
        """
        device = states.device

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            at = positions.to(query.device)
            key, value = keep(_rotated(key, at), value)
            seen = None if mask is None else mask.to(query.device)
            return scaled_dot_product_attention(_rotated(query, at), key, value, attn_mask=seen)

        return self.predict(self.last_norm(self.passed(self.joined(states, tokens), attend))).to(device)


def _rotated(vectors: Tensor, positions: Tensor) -> Tensor:
    """[B, heads, M, D] turned by their positions [1 or B, M] (rotary embedding; Su et al., 2021)."""
    half = vectors.shape[-1] // 2
    speeds = ROTARY_BASE ** (-torch.arange(half, device=vectors.device) / half)
    angles = (positions.unsqueeze(-1) * speeds).unsqueeze(1)
    cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def save_eagle(folder: Path, layer: EagleLayer, *, target: Target) -> None:
    """Write the layer, and whose target it is for."""
    save_part(folder, layer, name=FILES, target=target, facts={})


def load_eagle(path: str, target: Target) -> EagleLayer:
    """Read what `save_eagle` wrote.

    Raises:
        OSError: there is no layer in the folder, or it is damaged.
        ValueError: it was trained for another target.
    """
    layer, _ = load_part(
        path, target, name=FILES, drafter="eagle", known=set(), build=lambda facts, weights: EagleLayer(target)
    )
    return layer
