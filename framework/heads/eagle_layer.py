"""EAGLE's layer: predicts the target's next state from its current state and the next token.

B rows, M pairs read, W seen, H hidden.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from framework.heads.draft_layer import DraftLayer
from framework.heads.head_checkpoint import load_part, save_part
from framework.models.target import Target

FILES = "eagle"  # file name without suffix
ROTARY_BASE = 10_000

Keep = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Stores the keys and values of a pass, [B, heads, M, D] each; returns those to attend to, [B, heads, W, D] each."""


class EagleLayer(DraftLayer):
    """Reads pairs of a state and the token after it; predicts the state at that token, which scores the next token.

    A state is the input of the target's output layer. The layer reads the drawn token, which resolves the uncertainty
    of sampling (EAGLE; Li et al., 2024, 2401.15077). Predicted states can replace those of the target, so the layer
    drafts autoregressively.
    """

    def __init__(self, target: Target):
        """
        Args:
            target: provides the embeddings and the output layer; the layer gets the output layer's dtype and device.
        """
        super().__init__(target)
        self.predict = nn.Linear(self.hidden_size, self.hidden_size, bias=False).to(self.join.weight)

    def forward(self, states: Tensor, tokens: Tensor, positions: Tensor, *, keep: Keep, mask: Tensor | None) -> Tensor:
        """
        Args:
            states: [B, M, H] states of the target, or predicted ones.
            tokens: [B, M] int64: the token after each state.
            positions: [1 or B, M] int64: positions of the pairs in the text.
            keep: stores keys and values, and returns them with those of earlier pairs.
            mask: [1 or B, 1, M, W]: added to the scores; or bool, True where a pair attends. None: all W.

        Returns:
            [B, M, H] states predicted at these tokens.
        """
        device = states.device

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            at = positions.to(query.device)
            key, value = keep(_rotated(key, at), value)
            seen = None if mask is None else mask.to(query.device)
            return scaled_dot_product_attention(_rotated(query, at), key, value, attn_mask=seen)

        return self.predict(self.last_norm(self.passed(self.joined(states, tokens), attend))).to(device)


def _rotated(vectors: Tensor, positions: Tensor) -> Tensor:
    """[B, heads, M, D] vectors, rotated by their positions [1 or B, M] (rotary embedding; Su et al., 2021)."""
    half = vectors.shape[-1] // 2
    speeds = ROTARY_BASE ** (-torch.arange(half, device=vectors.device) / half)
    angles = (positions.unsqueeze(-1) * speeds).unsqueeze(1)
    cosine, sine = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def save_eagle(folder: Path, layer: EagleLayer, *, target: Target) -> None:
    """Write the layer and the fingerprint of its target."""
    save_part(folder, layer, name=FILES, target=target, facts={})


def load_eagle(path: str, target: Target) -> EagleLayer:
    """Read a layer from a folder of `save_eagle`.

    Raises:
        OSError: the folder holds no layer, or a damaged one.
        ValueError: the layer was trained for another target.
    """
    layer, _ = load_part(
        path, target, name=FILES, drafter="eagle", known=set(), build=lambda facts, weights: EagleLayer(target)
    )
    return layer
