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
from framework.heads.published_files import fill, is_published
from framework.heads.published_medusa import read_published_heads
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

    def __init__(self, target: Target, *, num_heads: int, output: str, blocks: int = 1):
        """
        Args:
            target: provides the output layer; the heads get its dtype and device.
            num_heads: K >= 1.
            blocks: how often h becomes h + SiLU(A h + b), with the same A and b, before W; repeated in published heads
                alone.
            output: "tied", W_k is W itself; "mapped", W_k = W P_k with a matrix P_k [H, H], initially the identity,
                which learns about as much as "own" and is far smaller; "own", W_k is a copy of W.

        Raises:
            ValueError: an unknown output.
        """
        super().__init__()
        if output not in OUTPUTS:
            raise OptionError("output", output, f"{', '.join(OUTPUTS)}")
        self.output, self.blocks = output, blocks
        layer = target.model.model.get_output_embeddings()
        self._width, hidden_size = target.vocabulary_size, layer.weight.shape[1]
        like = {"dtype": layer.weight.dtype, "device": layer.weight.device}  # the weight itself may be sharded
        zeros = torch.zeros(num_heads, hidden_size, hidden_size, **like)
        self.weights = nn.Parameter(zeros)  # A
        self.biases = nn.Parameter(zeros[:, 0].clone())  # b
        if output == "mapped":
            self.maps = nn.Parameter(zeros + torch.eye(hidden_size).to(zeros))  # P
        # Integers cannot be trained.
        copies = [copy.deepcopy(as_linear(layer)) for _ in range(num_heads)] if output == "own" else []
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
        # One matrix product for the first blocks of all heads.
        residual = functional.linear(hidden, weights.flatten(0, 1), biases.flatten())
        states = hidden.unsqueeze(-2) + functional.silu(residual).unflatten(-1, biases.shape)
        for _ in range(1, self.blocks):
            states = states + functional.silu(torch.einsum("...kh,kgh->...kg", states, weights) + biases)
        if self.output == "own":
            each = zip(self.outputs[:depth], states.unbind(-2), strict=True)
            logits = torch.stack([layer(state) for layer, state in each], -2)
        else:
            if self.output == "mapped":
                states = torch.einsum("...kh,kgh->...kg", states, self.maps[:depth]).contiguous()
            logits = self._tied()(states.to(self._dtype))
        return logits[..., : self._width].to(device)  # rows beyond V are padding

    def output_layers(self) -> list[nn.Module]:
        """The output layers, one per head with those of "mapped" multiplied out, W P_k; if "tied", the one of all."""
        if self.output == "own":
            return list(self.outputs)
        layer = as_linear(self._tied())
        return [layer] if self.output == "tied" else [_after(layer, matrix) for matrix in self.maps]


def as_linear(layer: Any) -> Any:
    """An output layer with floating weights: those of an int8 layer, multiplied by their scales."""
    return layer.as_linear() if isinstance(layer, Int8Linear) else layer


@torch.no_grad()
def _after(layer: Any, matrix: Tensor) -> nn.Module:
    """Output layer whose input a matrix [H, H] multiplies."""
    both, weight = copy.deepcopy(layer), layer.weight
    wide = torch.promote_types(weight.dtype, torch.float32)
    both.weight = nn.Parameter((weight.to(wide) @ matrix.to(weight.device, wide)).to(weight.dtype), requires_grad=False)
    return both


def save_heads(folder: Path, heads: MedusaHeads, *, target: Target, accuracies: Accuracies) -> None:
    """Write the heads, the fingerprint of their target, and the accuracies that their tree is built from."""
    facts = {"output": heads.output, "blocks": heads.blocks, "accuracies": accuracies}
    save_part(folder, heads, name=FILES, target=target, facts=facts)


def load_heads(path: str, target: Target, *, to_be_trained_on: bool = False) -> tuple[MedusaHeads, Accuracies]:
    """Read heads and their accuracies, from a folder of `save_heads` or from a published drafter.

    Args:
        path: the folder, or a published drafter's hub name.
        target: the target that the heads draft for.
        to_be_trained_on: whether training continues; the heads may then come from any target that they fit.

    Raises:
        OSError: the folder holds no heads, or damaged ones.
        ValueError: the heads were trained for another target.
    """

    def build(facts: dict[str, Any], weights: dict[str, Tensor]) -> MedusaHeads:
        num_heads, blocks = len(weights["weights"]), facts.get("blocks", 1)
        heads = MedusaHeads(target, num_heads=num_heads, output=facts["output"], blocks=blocks)
        if len(facts["accuracies"]) != heads.num_heads:
            raise ValueError(f"{FILES}.json has accuracies of {len(facts['accuracies'])} of {heads.num_heads} heads")
        return heads

    if is_published(path, own=FILES):
        return _published_heads(path, target, to_be_trained_on=to_be_trained_on)
    known = {"output", "accuracies"}
    heads, facts = load_part(path, target, name=FILES, drafter="medusa", known=known, build=build,
                             to_be_trained_on=to_be_trained_on)  # fmt: skip
    return heads, facts["accuracies"]


def _published_heads(path: str, target: Target, *, to_be_trained_on: bool) -> tuple[MedusaHeads, Accuracies]:
    layer = target.model.model.get_output_embeddings()
    rows, hidden_size = layer.weight.shape
    read = read_published_heads(path, hidden_size=hidden_size, rows=rows)
    output = "own" if read.outputs else "tied"
    heads = MedusaHeads(target, num_heads=len(read.weights), output=output, blocks=read.blocks)
    for own in heads.outputs:
        own.register_parameter("bias", None)  # published heads have none, even if the target's output layer has one
    tensors = {"weights": read.weights, "biases": read.biases}
    tensors |= {f"outputs.{head}.weight": weight for head, weight in enumerate(read.outputs)}
    sizes = {"hidden size": hidden_size, "vocabulary": rows}
    fill(heads, tensors, files=read.files, dtype=heads.weights.dtype, device=heads.weights.device, sizes=sizes)
    heads.name_or_path = path  # type: ignore[assignment]  # as for models of transformers
    return heads.requires_grad_(to_be_trained_on), read.accuracies
