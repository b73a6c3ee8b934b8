"""Weight-only int8: linear layers whose weights are 8-bit integers with one float scale per output.

The quantised model is a model of its own: it is the target, and decoding is exact for its distribution. A compiled
graph on a CPU, and the passes beside it, read the integers as they are (`framework.kernels.packed_linear`), a quarter
of the bytes of float32.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import handle_torch_function, has_torch_function_variadic
from transformers import PreTrainedModel

LARGEST = 127  # -128 is not used, so that the integers are symmetric


class Int8Linear(nn.Module):
    """A linear layer with weights scale[n] * integers[n, k].

    Attributes:
        integers: [N, K] int8.
        scale: [N] float32.
        bias: [N], or None.
    """

    integers: Tensor
    scale: Tensor

    def __init__(self, layer: nn.Linear):
        """
        Args:
            layer: the layer whose weights are rounded to the nearest integers.
        """
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1) / LARGEST
        integers = (weight / scale.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)).round()
        self.register_buffer("integers", integers.to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias
        self.dtype = layer.weight.dtype

    @property
    def weight(self) -> Tensor:
        """[N, K] the weights as numbers of the model's dtype."""
        return (self.integers * self.scale.unsqueeze(1)).to(self.dtype)

    def as_linear(self) -> nn.Linear:
        """An ordinary layer with the same weights and a bias of its own."""
        outputs, inputs = self.integers.shape
        layer = nn.Linear(inputs, outputs, bias=self.bias is not None, dtype=self.dtype, device=self.integers.device)
        layer.weight.data = self.weight
        if self.bias is not None:
            layer.bias.data = self.bias.detach().clone()
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """[..., N] from [..., K]."""
        if x.dtype == torch.float16:  # sums of products with integers exceed its range
            return linear(x, self.weight.to(x.dtype), self.bias)
        product = integer_product(x, self.integers)
        product = (product if x.dtype == torch.float64 else product.float()) * self.scale
        return (product if self.bias is None else product + self.bias).to(x.dtype)


def integer_product(x: Tensor, integers: Tensor) -> Tensor:
    """[..., N] of x's dtype, from x [..., K] and integers [N, K]; modes of PyTorch may replace it."""
    if has_torch_function_variadic(x, integers):
        product: Tensor = handle_torch_function(integer_product, (x, integers), x, integers)
        return product
    return linear(x, integers.to(x.dtype))


def round_to_int8(model: PreTrainedModel) -> int:
    """Replace all linear layers of a model in place, the output layer included; returns their number.

    Embeddings keep their dtype, also those that share their weights with the output layer.
    """
    layers = [(name, layer) for name, layer in model.named_modules() if type(layer) is nn.Linear]
    for name, layer in layers:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, Int8Linear(layer))
    return len(layers)
