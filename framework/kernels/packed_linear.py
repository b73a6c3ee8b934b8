"""Matrix products with packed weights, as an operator of compiled graphs on a CPU.

A round reads a few rows per pass, so its time is that of reading the weights. `packed_linear.cpp` reads them in one
stream for up to eight rows, and all graphs of a model share one packed copy.

M rows, K inputs, N outputs.
"""

import operator
from collections import defaultdict
from functools import cache
from math import prod
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch._dynamo.source import LocalSource
from torch.fx import GraphModule, Node
from torch.utils.weak import WeakTensorKeyDictionary

from framework.kernels import cpp_operators
from framework.kernels.huge_pages import in_huge_pages, zeros_outside_heap

NAME = "packed_linear"
MOST_ROWS = 256  # a library's product is as fast for more
MOST_ROWS_OF_BFLOAT16 = 32  # a library may have instructions for matrices (AMX)
DTYPES = (torch.float32, torch.bfloat16)  # of inputs and outputs; weights may be int8


@cache
def operators() -> Any:
    """The operators packed_linear(x [..., K], packed, N) -> [..., N] and tile() -> outputs of a tile.

    Raises:
        torch._inductor.exc.CppCompileError: the compiler rejects the source.
    """
    ours = cpp_operators.operators(NAME)
    torch.library.register_fake("outrider::packed_linear", lambda x, packed, size: x.new_empty(*x.shape[:-1], size))
    return ours


def pack(*weights: Tensor) -> Tensor:
    """[tiles, K, tile] from weights [N, K], one below the other; for bfloat16 in pairs, [tiles, K / 2, tile, 2]."""
    tile = operators().tile()
    tiles = _in_whole_tiles(weights, tile).unflatten(0, (-1, tile))
    if tiles.dtype == torch.bfloat16:
        tiles = tiles.unflatten(2, (-1, 2))
    return in_huge_pages(tiles.transpose(1, 2))


def _in_whole_tiles(weights: tuple[Tensor, ...], tile: int) -> Tensor:
    """[N, K]: weights one below the other, and zeros up to a multiple of the tile.

    A copy lies outside the heap, which would keep most of the memory.
    """
    size = sum(map(len, weights))
    if len(weights) == 1 and size % tile == 0:
        return weights[0]
    joined = zeros_outside_heap((size + -size % tile, weights[0].shape[1]), weights[0].dtype)
    torch.cat(weights, out=joined[:size])
    return joined


_PACKED = WeakTensorKeyDictionary()  # by the first of several weights: copies that begin with it


class _Copy(NamedTuple):
    """Packed weights, and the weights and their versions that they were made from."""

    weights: list[ReferenceType[Tensor]]
    versions: list[int]
    packed: Tensor

    def is_of(self, weights: list[Tensor]) -> bool:
        """Whether the copy was made from these very weights, whatever their versions."""
        return len(weights) == len(self.weights) and all(map(operator.is_, weights, (each() for each in self.weights)))

    def is_alive(self) -> bool:
        """Whether all of its weights still exist."""
        return all(each() is not None for each in self.weights)


def _packed(weights: list[Tensor]) -> Tensor:
    """The packed copy of weights with the same input, one below the other; made once while they are unchanged."""
    copies: list[_Copy] = _PACKED.setdefault(weights[0], [])
    versions = [weight._version for weight in weights]
    for copy in copies:
        if copy.is_of(weights) and copy.versions == versions:
            return copy.packed
    copies[:] = [copy for copy in copies if copy.is_alive() and not copy.is_of(weights)]
    packed = pack(*(weight.detach() for weight in weights))
    copies.append(_Copy([ref(weight) for weight in weights], versions, packed))
    return packed


class _Product(NamedTuple):
    """A node of a graph that multiplies by a constant weight."""

    node: Node
    weight: Tensor


def use_packed_linear(graph: GraphModule) -> None:
    """Replace products with constant weights in a graph; those with the same input become one product."""
    if not cpp_operators.is_available(NAME):
        return
    joinable: dict[Any, list[_Product]] = defaultdict(list)  # by input and dtype of the weight
    for node in graph.graph.find_nodes(op="call_function", target=torch._C._nn.linear):
        x, weight_node, _ = _arguments(node)
        weight = _weight(graph, weight_node)
        if weight is not None and _is_served(x.meta["example_value"], weight):
            joinable[x, weight.dtype].append(_Product(node, weight))
    for products in joinable.values():
        _replace(graph, products)
    _delete_unread(graph)
    graph.recompile()


def _arguments(node: Node) -> tuple[Any, Any, Any]:
    """Nodes of input, weight and bias of a call of `linear`, whether given by place or by name."""
    given = dict(zip(("input", "weight", "bias"), node.args, strict=False)) | node.kwargs
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
    num_rows = prod(x.shape[:-1])  # no number if a graph serves prompts of every length
    if x.dtype not in DTYPES or (isinstance(num_rows, int) and num_rows > MOST_ROWS):
        return False
    if weight.dtype == torch.int8:
        return True
    if weight.dtype != x.dtype or weight.shape[1] % 2:
        return False
    return x.dtype != torch.bfloat16 or (isinstance(num_rows, int) and num_rows <= MOST_ROWS_OF_BFLOAT16)


def _replace(graph: GraphModule, products: list[_Product]) -> None:
    """Replace products with one input by slices of one product."""
    nodes: Any = graph.graph
    begin: Any = products[0].node
    weights = [product.weight for product in products]
    name = f"packed_{begin.name}"
    # Persistent, since a module keeps the names of other buffers in a set, whose order would enter the compiler's key.
    graph.register_buffer(name, _packed(weights))
    sources: Any = graph._param_name_to_source
    sources[name] = LocalSource(name)
    size, value = sum(map(len, weights)), begin.meta["example_value"]
    with nodes.inserting_before(begin):
        arguments = (_arguments(begin)[0], nodes.get_attr(name), size)
        together = nodes.call_function(operators().packed_linear.default, arguments)
        together.meta["example_value"] = value.new_empty(*value.shape[:-1], size)
    first = 0
    for node, weight in products:
        bias = _arguments(node)[2]
        with nodes.inserting_before(node):
            output = together
            if len(products) > 1:
                output = nodes.call_function(torch.narrow, (output, -1, first, len(weight)))
                output.meta = dict(node.meta)
            if bias is not None:
                output = nodes.call_function(torch.add, (output, bias))
                output.meta = dict(node.meta)
        first += len(weight)
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
