"""Medusa's heads: logits of the tokens after the next one, from the target's last hidden state.

K heads, H hidden, V vocabulary; `...` stands for any leading axes.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from framework.core.option_error import OptionError
from framework.heads.head_checkpoint import Accuracies, load_part, save_part
from framework.kernels.int8_linear import Int8Linear
from framework.models.target import Target

FILES = "heads"  # file name without suffix
OUTPUTS = ("tied", "mapped", "own")


class MedusaHeads(nn.Module):
    """Heads k = 1...K; head k scores the token k places after the one that the target's output layer W scores.

    logits_k = W_k (h + SiLU(A_k h + b_k)) from the hidden state h that W reads (Cai et al., 2024, 2401.10774). A_k and
    b_k are initialised to zero and W_k to W, so that every head starts as the target's own. Transformations of the
    logits after W, such as a soft cap, are not applied: drafts need not agree with the target.
    """

    def __init__(self, target: Target, *, num_heads: int, output: str):
        """
        Args:
            target: provides the output layer; the heads get its dtype and device.
            num_heads: K >= 1.
            output: "tied", W_k is W itself; "mapped", W_k = W P_k with a matrix P_k [H, H], initially the identity,
                which learns about as much as "own" and is far smaller; "own", W_k is a copy of W.

        Raises:
            ValueError: an unknown output.
        """
        super().__init__()
        if output not in OUTPUTS:
            raise OptionError("output", output, f"{', '.join(OUTPUTS)}")
        self.output = output
        layer = target.model.model.get_output_embeddings()
        self._width, hidden_size = target.vocabulary_size, layer.weight.shape[1]
        like = {"dtype": layer.weight.dtype, "device": layer.weight.device}  # the weight itself may be sharded
        zeros = torch.zeros(num_heads, hidden_size, hidden_size, **like)
        self.weights = nn.Parameter(zeros)  # A
        self.biases = nn.Parameter(zeros[:, 0].clone())  # b
        if output == "mapped":
            self.maps = nn.Parameter(zeros + torch.eye(hidden_size).to(zeros))  # P
        own = layer.as_linear() if isinstance(layer, Int8Linear) else layer  # integers cannot be trained
        copies = [copy.deepcopy(own) for _ in range(num_heads)] if output == "own" else []
        self.outputs = nn.ModuleList(copies).requires_grad_(True)
        # Wrapped in a function, so that the target's layer is not registered as a submodule.
        self._tied: Callable[[], nn.Module] = lambda: layer
        self._dtype = layer.weight.dtype  # int8 layers compute their weight whenever it is read

    @property
    def num_heads(self) -> int:
        return len(self.weights)

    def forward(self, hidden: Tensor, depth: int | None = None) -> Tensor:
        """
        Args:
            hidden: [..., H] input of the target's output layer.
            depth: number of heads to compute, from the first on; None: all K.

        Returns:
            [..., depth, V] logits before temperature.
        """
        weights, biases = self.weights[:depth], self.biases[:depth]
        device, hidden = hidden.device, hidden.to(weights)  # the heads' device, which may be another
        # One matrix product for the blocks of all heads.
        residual = functional.linear(hidden, weights.flatten(0, 1), biases.flatten())
        states = hidden.unsqueeze(-2) + functional.silu(residual).unflatten(-1, biases.shape)
        if self.output == "own":
            each = zip(self.outputs[:depth], states.unbind(-2), strict=True)
            logits = torch.stack([layer(state) for layer, state in each], -2)
        else:
            if self.output == "mapped":
                states = torch.einsum("...kh,kgh->...kg", states, self.maps[:depth]).contiguous()
            logits = self._tied()(states.to(self._dtype))
        return logits[..., : self._width].to(device)  # rows beyond V are padding


def save_heads(folder: Path, heads: MedusaHeads, *, target: Target, accuracies: Accuracies) -> None:
    """Write the heads, the fingerprint of their target, and the accuracies that their tree is built from."""
    facts = {"output": heads.output, "accuracies": accuracies}
    save_part(folder, heads, name=FILES, target=target, facts=facts)


def load_heads(path: str, target: Target, *, to_be_trained_on: bool = False) -> tuple[MedusaHeads, Accuracies]:
    """Read heads and their accuracies from a folder of `save_heads`.

    Args:
        path: the folder.
        target: the target that the heads draft for.
        to_be_trained_on: whether training continues; the heads may then come from any target that they fit.

    Raises:
        OSError: the folder holds no heads, or damaged ones.
        ValueError: the heads were trained for another target.
    """

    def build(facts: dict[str, Any], weights: dict[str, Tensor]) -> MedusaHeads:
        heads = MedusaHeads(target, num_heads=len(weights["weights"]), output=facts["output"])
        if len(facts["accuracies"]) != heads.num_heads:
            raise ValueError(f"{FILES}.json has accuracies of {len(facts['accuracies'])} of {heads.num_heads} heads")
        return heads

    known = {"output", "accuracies"}
    heads, facts = load_part(path, target, name=FILES, drafter="medusa", known=known, build=build,
                             to_be_trained_on=to_be_trained_on)  # fmt: skip
    return heads, facts["accuracies"]
