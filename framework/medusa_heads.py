"""Medusa's heads: from the target's last hidden state to logits of the tokens behind the next one.

K heads, H hidden, V vocabulary; `...` stands for any leading axes.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.fitted_part import Accuracies, load_part, save_part
from framework.target import Target

FILES = "heads"  # and what they end with
OUTPUTS = ("tied", "mapped", "own")


class MedusaHeads(nn.Module):
    """Head k = 1...K scores the token k places behind the one that the target's output layer W scores.

    logits_k = W_k (h + SiLU(A_k h + b_k)) from the hidden state h that W reads (Cai et al., 2024, 2401.10774). A_k and
    b_k begin at zero and W_k as W, so that every head begins as the target's own. What a target does to its logits
    behind W, such as a soft cap, is not repeated: heads propose, and need not agree with it.
    """

    def __init__(self, target: Target, *, num_heads: int, output: str):
        """
        Args:
            target: whose output layer is used; the heads get its dtype and device.
            num_heads: K >= 1.
            output: "tied", W_k is W itself; "mapped", W_k = W P_k with a matrix P_k [H, H], at first the identity: it
                learns about as much as a W_k of its own, and is far smaller; "own", W_k is a copy of W.

        Raises:
            ValueError: an unknown output.
        """
        super().__init__()
        if output not in OUTPUTS:
            raise ValueError(f"training.trainable.output is {output!r}; allowed: {', '.join(OUTPUTS)}")
        self.output = output
        layer = target.model.model.get_output_embeddings()
        self._width, hidden_size = target.vocabulary_size, layer.weight.shape[1]
        zeros = layer.weight.new_zeros(num_heads, hidden_size, hidden_size)
        self.weights = nn.Parameter(zeros)  # A
        self.biases = nn.Parameter(zeros[:, 0].clone())  # b
        if output == "mapped":
            self.maps = nn.Parameter(zeros + torch.eye(hidden_size).to(zeros))  # P
        copies = [copy.deepcopy(layer) for _ in range(num_heads)] if output == "own" else []
        self.outputs = nn.ModuleList(copies).requires_grad_(True)
        # In a function, so that the target's layer does not become a part of this module.
        self._tied: Callable[[], nn.Module] = lambda: layer

    @property
    def num_heads(self) -> int:
        return len(self.weights)

    def forward(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """
        Args:
            hidden: [..., H] what the target's output layer reads.
            depth: how many heads are wanted, the first ones; None is all K.

        Returns:
            [..., depth, V] logits before temperature.
        """
        weights, biases = self.weights[:depth], self.biases[:depth]
        device, hidden = hidden.device, hidden.to(weights)  # the output layer's, which may be another
        # All heads' blocks as one matrix, and as one product.
        residual = functional.linear(hidden, weights.flatten(0, 1), biases.flatten())
        states = hidden.unsqueeze(-2) + functional.silu(residual).unflatten(-1, biases.shape)
        if self.output == "own":
            each = zip(self.outputs[:depth], states.unbind(-2), strict=True)
            logits = torch.stack([layer(state) for layer, state in each], -2)
        else:
            if self.output == "mapped":
                states = torch.einsum("...kh,kgh->...kg", states, self.maps[:depth]).contiguous()
            layer = self._tied()
            logits = layer(states.to(layer.weight.dtype))
        return logits[..., : self._width].to(device)  # rows beyond V are padding


def save_heads(folder: Path, heads: MedusaHeads, *, target: Target, accuracies: Accuracies) -> None:
    """Write the heads, whose target they are for, and the accuracies that their tree is built from."""
    facts = {"output": heads.output, "accuracies": accuracies}
    save_part(folder, heads, name=FILES, target=target, facts=facts)


def load_heads(
    path: str, target: Target, *, key: str = "drafter.path", to_be_trained_on: bool = False
) -> tuple[MedusaHeads, Accuracies]:
    """Read what `save_heads` wrote.

    Args:
        key: what path is called in the yaml.
        to_be_trained_on: then they may be of any target that they fit.

    Raises:
        OSError: there are no heads in the folder, or they are damaged.
        ValueError: they were trained for another target.
    """

    def build(facts: dict[str, Any], weights: dict[str, Tensor]) -> MedusaHeads:
        heads = MedusaHeads(target, num_heads=len(weights["weights"]), output=facts["output"])
        if len(facts["accuracies"]) != heads.num_heads:
            raise ValueError(f"{FILES}.json has accuracies of {len(facts['accuracies'])} of {heads.num_heads} heads")
        return heads

    known = {"output", "accuracies"}
    heads, facts = load_part(path, target, name=FILES, drafter="medusa", known=known, build=build, key=key,
                             to_be_trained_on=to_be_trained_on)  # fmt: skip
    return heads, facts["accuracies"]
