"""Matrix products with packed weights on a CPU: an operator of compiled graphs, and of the eager passes between them.

A round reads a few rows per pass, so its time is that of reading the weights. `packed_linear.cpp` reads them in one
stream for up to eight rows, and all passes over a model share one packed copy. When it is made, the pages of the file
that hold the weight leave memory.

M rows, K inputs, N outputs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.source import LocalSource
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from framework.core.memory import mapped_zeros
from framework.kernels import cpp_operators
from framework.kernels.file_pages import drop_unchanged_pages
from framework.kernels.huge_pages import CHUNK, in_huge_pages
from framework.kernels.int8_linear import integer_product

NAME = "packed_linear"
# Rows in bfloat16, by dtype of the weights: for more a library may have instructions for matrices (AMX).
MOST_ROWS_OF_BFLOAT16 = {torch.bfloat16: 32, torch.int8: 256}
LINEAR = torch._C._nn.linear  # torch.nn.functional.linear, in graphs and in eager passes


def operators() -> Any:
    """The operators packed_linear(x [..., K], packed, N) -> [..., N] and tile() -> outputs of a tile.

    Raises:
        torch._inductor.exc.CppCompileError: the compiler rejects the source.
    """
    return cpp_operators.operators(NAME)


@cache
def _declare_shape() -> None:
    """Tell the compiler the shape of the operator's output."""
    torch.library.register_fake("outrider::packed_linear", lambda x, packed, size: x.new_empty(*x.shape[:-1], size))


def pack(weight: Tensor) -> Tensor:
    """[tiles, K, tile] from a weight [N, K]; for bfloat16 in pairs, [tiles, K / 2, tile, 2]. Further outputs are 0.

    The copy lies outside the heap, which would keep most of the memory.
    """
    tile, depth = operators().tile(), 2 if weight.dtype == torch.bfloat16 else 1
    pairs = weight.unflatten(1, (-1, depth))
    whole, rest = divmod(len(weight), tile)
    shape = whole + (rest > 0), pairs.shape[1], tile, depth
    packed = mapped_zeros(shape, weight.dtype, in_huge_pages=True)
    packed[:whole] = pairs[: whole * tile].unflatten(0, (whole, tile)).transpose(1, 2)
    packed[whole:, :, :rest] = pairs[whole * tile :].transpose(0, 1)
    return packed if depth > 1 else packed.squeeze(-1)


class _Copy(NamedTuple):
    """A packed weight.

    Attributes:
        state: state of the weight that it was made from (`_state`).
        packed: [tiles, K, tile].
        joined: the tensor that `packed` is a part of; None: no graph reads it yet.
    """

    state: tuple[Any, ...]
    packed: Tensor
    joined: Tensor | None


_COPIES = WeakTensorKeyDictionary()  # by weight


def _copy(weight: Tensor) -> _Copy:
    """The packed copy of a weight, made once while the weight is unchanged."""
    copy: _Copy | None = _COPIES.get(weight)
    state = _state(weight)
    if copy is None or copy.state != state:
        copy = _COPIES[weight] = _Copy(state, pack(weight.detach()), None)
        if weight.dtype == torch.float32:  # a library reads prompts in bfloat16 from the weights themselves
            drop_unchanged_pages(weight)
    return copy


def _state(weight: Tensor) -> tuple[Any, ...]:
    """State that tells an unchanged weight from a changed one.

    PyTorch counts changes in place, except those through `weight.data`, NumPy and fused optimizers, which go unseen.
    """
    storage = StorageWeakRef(weight.untyped_storage())  # which keeps other storages from its address
    return weight._version, storage, weight.storage_offset(), weight.shape, weight.stride(), weight.dtype


def _joined(weights: Sequence[Tensor]) -> Tensor:
    """The packed copies of weights with the same input, one below the other in memory."""
    copies = [_copy(weight) for weight in weights]
    joined, parts = copies[0].joined, [copy.packed for copy in copies]
    if len(parts) == 1 and (joined is not None or parts[0].nbytes > CHUNK // 2):  # in huge pages already
        return parts[0]
    if joined is None or not _consists_of(joined, parts):
        joined = in_huge_pages(parts)
        for weight, copy, part in zip(weights, copies, joined.split(list(map(len, parts))), strict=True):
            _COPIES[weight] = copy._replace(packed=part, joined=joined)
    return joined


def _consists_of(joined: Tensor, parts: list[Tensor]) -> bool:
    """Whether a tensor consists of these parts in memory, in this order."""
    sizes = list(map(len, parts))
    return sum(sizes) == len(joined) and all(
        piece.data_ptr() == part.data_ptr() for piece, part in zip(joined.split(sizes), parts, strict=True)
    )


class PackedProducts(TorchFunctionMode):
    """Products with packed weights in eager passes.

    The passes thereby round as graphs do, and need no page of the file. Parameters and integers are packed, but no
    tensors that a pass makes, such as one expert of many.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (LINEAR, integer_product) and not torch.is_grad_enabled() and cpp_operators.is_available(NAME):
            x, weight, bias = _arguments(args, kwargs)
            outlives_pass = (type(weight) is nn.Parameter or func is integer_product) and not weight.is_inference()
            if outlives_pass and x.device.type == "cpu" and _is_served(x, weight):
                y = operators().packed_linear(x, _copy(weight).packed, len(weight))
                return y if bias is None else y + bias
        return func(*args, **kwargs)


class _Product(NamedTuple):
    """A node of a graph that multiplies by a constant weight."""

    node: Node
    weight: Tensor


def use_packed_linear(graph: GraphModule) -> None:
    """Replace products with constant weights in a graph; those with the same input become one product."""
    if not cpp_operators.is_available(NAME):
        return
    _declare_shape()
    joinable: dict[Any, list[_Product]] = defaultdict(list)  # by input and dtype of the weight
    for node in graph.graph.find_nodes(op="call_function", target=LINEAR):
        x, weight_node, _ = _arguments(node.args, node.kwargs)
        weight = _weight(graph, weight_node)
        if weight is not None and _is_served(x.meta["example_value"], weight):
            joinable[x, weight.dtype].append(_Product(node, weight))
    for products in joinable.values():
        _replace(graph, products)
    _delete_unread(graph)
    graph.recompile()


def _arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Input, weight and bias of a call of `linear`, whether given by place or by name."""
    given = {**dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
    return given["input"], given["weight"], given.get("bias")


def _weight(graph: GraphModule, argument: Any) -> Tensor | None:
    """Constant weight behind a node, before a conversion from int8; None: not a constant."""
    if argument.op == "call_method" and argument.target == "to":
        source = argument.args[0]
        if source.meta["example_value"].dtype == torch.int8:
            argument = source
    if argument.op != "get_attr":
        return None
    module, _, name = argument.target.rpartition(".")
    weight: Tensor = getattr(graph.get_submodule(module), name)
    return weight


def _is_served(x: Tensor, weight: Tensor) -> bool:
    if weight.dim() != 2 or not weight.numel() or weight.dtype not in (x.dtype, torch.int8):
        return False
    if x.dtype == torch.bfloat16:
        num_rows = prod(x.shape[:-1])  # no number if a graph serves prompts of every length
        is_few = isinstance(num_rows, int) and num_rows <= MOST_ROWS_OF_BFLOAT16[weight.dtype]
        return is_few and (weight.dtype == torch.int8 or weight.shape[1] % 2 == 0)
    return x.dtype == torch.float32


def _replace(graph: GraphModule, products: list[_Product]) -> None:
    """Replace products with one input by slices of one product."""
    nodes: Any = graph.graph
    begin: Any = products[0].node
    tile = operators().tile()
    packed = _joined([product.weight for product in products])
    name = f"packed_{begin.name}"
    # Persistent, since a module keeps the names of other buffers in a set, whose order would enter the compiler's key.
    graph.register_buffer(name, packed)
    sources: Any = graph._param_name_to_source
    sources[name] = LocalSource(name)
    size = len(packed) * tile if len(products) > 1 else len(products[0].weight)
    value = begin.meta["example_value"]
    with nodes.inserting_before(begin):
        x = _arguments(begin.args, begin.kwargs)[0]
        together = nodes.call_function(operators().packed_linear.default, (x, nodes.get_attr(name), size))
        together.meta["example_value"] = value.new_empty(*value.shape[:-1], size)
    first = 0
    for node, weight in products:
        bias = _arguments(node.args, node.kwargs)[2]
        with nodes.inserting_before(node):
            output = together
            if len(products) > 1:
                output = nodes.call_function(torch.narrow, (output, -1, first, len(weight)))
                output.meta = dict(node.meta)
            if bias is not None:
                output = nodes.call_function(torch.add, (output, bias))
                output.meta = dict(node.meta)
        first += len(weight) + -len(weight) % tile
        node.replace_all_uses_with(output)
        nodes.erase_node(node)


def _delete_unread(graph: GraphModule) -> None:
    """Delete weights without users from a graph; each remaining weight is an input of every call."""
    for node in graph.graph.find_nodes(op="call_method", target="to"):  # of int8 weights
        if not node.users and node.args[0].op == "get_attr":
            graph.graph.erase_node(node)
    weights = graph.graph.find_nodes(op="get_attr")
    read = {node.target for node in weights if node.users}
    for node in weights:
        if not node.users:
            graph.graph.erase_node(node)
    for target in {node.target for node in weights} - read:
        module, _, name = target.rpartition(".")
        delattr(graph.get_submodule(module), name)
