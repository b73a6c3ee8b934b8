"""Matrix products of few rows with packed weights, as an operator of compiled graphs on a CPU.

A round reads a few rows per pass, so its time is that of reading the weights. `packed_linear.cpp`, compiled once per
machine, reads them in one stream whatever the number of rows, and all graphs of a model share one packed copy.

M rows, K inputs, N outputs.
"""

import hashlib
import os
import tempfile
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.source import LocalSource
from torch._inductor.cpp_builder import BuildOptionsBase, CppBuilder, CppTorchOptions
from torch._inductor.cpu_vec_isa import pick_vec_isa
from torch._inductor.exc import CppCompileError
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.fx import GraphModule, Node
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

MOST_ROWS = 32  # a library's product is faster for more
DTYPES = (torch.float32, torch.bfloat16)  # of inputs and outputs; weights may be int8
SOURCE = Path(__file__).with_suffix(".cpp")


@cache
def operators() -> Any:
    """The operators packed_linear(x [..., K], packed, N) -> [..., N] and tile() -> outputs of a tile.

    They are compiled for this machine unless they are in the compiler's cache.

    Raises:
        torch._inductor.exc.CppCompileError: the compiler rejects the source.
    """
    torch.ops.load_library(str(_library()))
    torch.library.register_fake("outrider::packed_linear", lambda x, packed, size: x.new_empty(*x.shape[:-1], size))
    return torch.ops.outrider


@cache
def is_available() -> bool:
    """Whether the operators can be compiled on this machine; warns once if they cannot."""
    try:
        operators()
    except CppCompileError as error:
        reason = str(error).strip().splitlines()[-1]
        message = f"compiled passes use PyTorch's own products, since {SOURCE.name} fails to compile: {reason}"
        warnings.warn(message, stacklevel=2)
        return False
    return True


def _library() -> Path:
    options = CppTorchOptions(vec_isa=pick_vec_isa(), extra_flags=("-ffp-contract=fast",))
    folder = Path(cache_dir()) / "outrider"
    command = _builder("packed_linear", folder, options).get_command_line()
    key = hashlib.sha256("\0".join([SOURCE.read_text(), torch.__version__, command]).encode()).hexdigest()[:16]
    library = folder / f"packed_linear_{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:  # another process may compile it, too
            builder = _builder("packed_linear", Path(unfinished), options)
            builder.build()
            os.replace(builder.get_target_file_path(), library)
    return library


def _builder(name: str, folder: Path, options: BuildOptionsBase) -> CppBuilder:
    return CppBuilder(name=name, sources=str(SOURCE), output_dir=str(folder), BuildOption=options)


def pack(weight: Tensor) -> Tensor:
    """[tiles, K, tile] from a weight [N, K], padded with zeros; for bfloat16 in pairs, [tiles, K / 2, tile, 2]."""
    tile = operators().tile()
    tiles = pad(weight, (0, 0, 0, -len(weight) % tile)).unflatten(0, (-1, tile))
    if weight.dtype == torch.bfloat16:
        tiles = tiles.unflatten(2, (-1, 2))
    return tiles.transpose(1, 2).contiguous()


_PACKED = WeakTensorKeyDictionary()  # by the first of several weights: by the identities of all, `_Copy`


class _Copy(NamedTuple):
    """Packed weights, and the versions of the weights that they were made from."""

    versions: list[int]
    packed: Tensor


def _packed(weights: list[Tensor]) -> Tensor:
    """The packed copy of weights with the same input, one below the other; made once while they are unchanged."""
    copies: dict[tuple[int, ...], _Copy] = _PACKED.setdefault(weights[0], {})
    key, versions = tuple(map(id, weights)), [weight._version for weight in weights]
    if key not in copies or copies[key].versions != versions:
        copies[key] = _Copy(versions, pack(torch.cat([weight.detach() for weight in weights])))
    return copies[key].packed


class _Product(NamedTuple):
    """A node of a graph that multiplies by a constant weight."""

    node: Node
    weight: Tensor


def use_packed_linear(graph: GraphModule) -> None:
    """Replace products of few rows with constant weights in a graph; those with the same input become one product."""
    if not is_available():
        return
    with_input: dict[Any, list[_Product]] = defaultdict(list)
    for node in graph.graph.find_nodes(op="call_function", target=torch._C._nn.linear):
        weight = _weight(graph, node.args[1])
        if weight is not None and _is_served(node.args[0].meta["example_value"], weight):
            with_input[node.args[0]].append(_Product(node, weight))
    for products in with_input.values():
        _replace(graph, products)
    _delete_unread(graph)
    graph.recompile()


def _weight(graph: GraphModule, argument: Any) -> Tensor | None:
    """The constant that a node stands for, before a conversion from int8; None: it is not constant."""
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
    if x.dtype not in DTYPES or x.shape[:-1].numel() > MOST_ROWS:
        return False
    return weight.dtype == torch.int8 or (weight.dtype == x.dtype and weight.shape[1] % 2 == 0)


def _replace(graph: GraphModule, products: list[_Product]) -> None:
    """Replace products with one input by slices of one product."""
    nodes: Any = graph.graph
    begin: Any = products[0].node
    weights = [product.weight for product in products]
    name = f"packed_{begin.name}"
    graph.register_buffer(name, _packed(weights))  # persistent: names of others, a set, would change the cache's key
    sources: Any = graph._param_name_to_source
    sources[name] = LocalSource(name)
    size, value = sum(map(len, weights)), begin.meta["example_value"]
    with nodes.inserting_before(begin):
        arguments = (begin.args[0], nodes.get_attr(name), size)
        together = nodes.call_function(operators().packed_linear.default, arguments)
        together.meta["example_value"] = value.new_empty(*value.shape[:-1], size)
    first = 0
    for node, weight in products:
        bias: Any = (*node.args, None)[2]
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
