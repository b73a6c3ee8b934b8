"""Products with packed weights: equal to a library's, for every row alone, from one copy for all graphs."""

import gc
import sys
import weakref

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch._inductor.exc import CppCompileError
from torch.fx import GraphModule
from torch.nn.functional import linear

from framework.kernels import cpp_operators, packed_linear
from framework.kernels.compiled_graphs import why_not
from framework.kernels.int8_linear import Int8Linear
from framework.kernels.packed_linear import (
    _COPIES,
    MOST_ROWS_OF_BFLOAT16,
    PackedProducts,
    _copy,
    _joined,
    operators,
    pack,
    use_packed_linear,
)
from tests.support.process_memory import in_memory

pytestmark = pytest.mark.skipif(why_not(torch.device("cpu")) is not None, reason="no C++ compiler")
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 4e-3}  # of the largest output; bfloat16 outputs have 8 bits


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("num_outputs", [1, 64, 2000])
def test_products_are_those_of_a_library(threads: None, dtype: torch.dtype, is_int8: bool, num_outputs: int) -> None:
    run = operators().packed_linear
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_outputs, 96, generator=generator).to(dtype)
    if is_int8:
        weight = (weight * 40).clamp(-127, 127).to(torch.int8)
    for num_rows in (*range(1, 9), 17):
        x = torch.randn(num_rows, 96, generator=generator).to(dtype)
        expected = linear(x.double(), weight.double())
        given = run(x, pack(weight), num_outputs)
        assert given.dtype == dtype
        scale = expected.abs().max()
        assert (given.double() - expected).abs().max() <= TOLERANCE[dtype] * scale
        # A row's result does not depend on the rows beside it, to the last bit.
        assert torch.equal(given, torch.cat([run(row[None], pack(weight), num_outputs) for row in x]))


class Layer(nn.Module):
    """Two products with one input, one of them with a bias, and a product with tied weights and a bias, by names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.up, self.gate, self.down = nn.Linear(32, 48), nn.Linear(32, 48, bias=False), nn.Linear(48, 32)
        self.bias = nn.Parameter(torch.randn(50))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        return linear(self.down(self.up(x) * self.gate(x)), bias=self.bias, weight=self.embedding.weight)


@torch.no_grad()
def _compiled(layer: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, list[GraphModule]]:
    """The output of a graph whose products are replaced and which is otherwise run as it is."""
    graphs = []

    def backend(graph: GraphModule, examples: list[torch.Tensor]) -> GraphModule:
        use_packed_linear(graph)
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch._inductor.config.patch(freezing=True):
        return torch.compile(layer.eval(), backend=backend, fullgraph=True, dynamic=False)(inputs), graphs


def _names(graph: GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]


def test_graphs_share_one_packed_copy_and_join_products_with_one_input() -> None:
    torch.manual_seed(0)
    layer = Layer()
    addresses = []
    for shape in ((1, 1), (1, 5)):
        tokens = torch.arange(shape[1]).reshape(shape)
        output, graphs = _compiled(layer, tokens)
        assert torch.allclose(output, layer(tokens), atol=1e-6)
        assert _names(graphs[0]).count("outrider.packed_linear.default") == 3
        weights = (layer.up.weight, layer.gate.weight, layer.down.weight, layer.embedding.weight)
        addresses.append([_COPIES[weight].packed.data_ptr() for weight in weights])
    assert addresses[0] == addresses[1]


@torch.no_grad()
def test_eager_products_read_the_copies_that_graphs_read() -> None:
    torch.manual_seed(0)
    layer, tokens = Layer(), torch.arange(40)[None]
    with PackedProducts():
        eager = layer(tokens)
    assert torch.allclose(eager, layer(tokens), atol=1e-6)
    assert all(each.weight in _COPIES for each in (layer.up, layer.gate, layer.down, layer.embedding))
    compiled, _ = _compiled(layer, tokens)
    assert torch.equal(compiled, eager)
    with PackedProducts():
        assert torch.equal(layer(tokens), eager)  # from parts of the joined copies
        layer.up.weight.mul_(2)
        changed = layer(tokens)
    assert torch.allclose(changed, layer(tokens), atol=1e-6)


@torch.no_grad()
def test_eager_products_with_other_tensors_are_those_of_a_library() -> None:
    experts, x = nn.Parameter(torch.randn(2, 64, 32)), torch.randn(5, 32)
    half, double = nn.Linear(32, 64).half(), nn.Linear(32, 64).double()
    odd, many = nn.Linear(31, 64).bfloat16(), nn.Linear(32, 64).bfloat16()
    vector = nn.Parameter(torch.randn(32))
    before = len(_COPIES)
    with PackedProducts():
        assert torch.equal(linear(x, experts[1]), x @ experts[1].T)
        assert half(x.half()).dtype == torch.float16 and double(x.double()).dtype == torch.float64
        odd(x[:, :31].bfloat16())
        many(torch.zeros(MOST_ROWS_OF_BFLOAT16[torch.bfloat16] + 1, 32).bfloat16())
        assert linear(x, vector).shape == (5,)
        assert linear(x, nn.Parameter(torch.empty(0, 32))).shape == (5, 0)
    with torch.inference_mode(), PackedProducts():
        weight = nn.Parameter(torch.randn(9, 32), requires_grad=False)
        assert torch.equal(linear(x, weight), x @ weight.T)
    assert len(_COPIES) == before


def test_eager_products_have_gradients_of_a_library() -> None:
    layer, x = nn.Linear(32, 64), torch.randn(5, 32)
    with PackedProducts():
        layer(x).sum().backward()
    assert layer.weight.grad is not None and layer.weight not in _COPIES


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_int8_weights_are_packed_as_they_are(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(Int8Linear(nn.Linear(32, 48)), Int8Linear(nn.Linear(48, 16, bias=False))).to(dtype)
    x = torch.randn(5, 32).to(dtype)
    output, graphs = _compiled(layer, x)
    assert torch.allclose(output, layer(x), rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-2)
    assert _names(graphs[0]).count("outrider.packed_linear.default") == 2
    assert _COPIES[layer[0].integers].packed.dtype == torch.int8
    with torch.no_grad(), PackedProducts():
        assert torch.equal(layer(x), output)


def test_changed_weights_are_packed_again() -> None:
    layer, tokens = Layer(), torch.tensor([[3]])
    _compiled(layer, tokens)
    with torch.no_grad():
        layer.down.weight.mul_(2)
    output, _ = _compiled(layer, tokens)
    assert torch.allclose(output, layer(tokens), atol=1e-6)


def test_a_packed_copy_ends_with_its_weight() -> None:
    weight = torch.ones(64, 8)
    copy = weakref.ref(_copy(weight).packed)
    assert copy() is _copy(weight).packed
    weight.zero_()
    assert _copy(weight).packed.sum() == 0
    gc.collect()
    assert copy() is None
    copy = weakref.ref(_copy(weight).packed)
    del weight
    gc.collect()
    assert copy() is None


def test_copies_are_joined_in_the_order_of_the_products() -> None:
    weights = [torch.full((rows, 8), float(rows)) for rows in (64, 130, 3)]
    joined = _joined(weights)
    assert _joined(weights) is joined
    assert torch.equal(joined, torch.cat([pack(weight) for weight in weights]))
    assert [_copy(weight).packed.data_ptr() for weight in weights] == [
        part.data_ptr() for part in joined.split([len(pack(weight)) for weight in weights])
    ]
    for others in (weights[::-1], weights[:2], [weights[1]]):
        assert torch.equal(_joined(others), torch.cat([pack(weight) for weight in others]))
    pair = _joined(weights[:2])
    assert _joined([weights[1]]).data_ptr() == _copy(weights[1]).packed.data_ptr() and _joined(weights[:2]) is pair


def test_a_large_weight_is_packed_into_huge_pages_at_once(monkeypatch) -> None:
    monkeypatch.setattr(packed_linear, "CHUNK", 1000)
    weight = torch.ones(64, 8)
    assert _joined([weight]) is _copy(weight).packed


@pytest.mark.parametrize(
    "change",
    [
        lambda weight: weight.add_(1),
        lambda weight: setattr(weight, "data", weight + 1),
        lambda weight: setattr(weight, "data", weight.bfloat16()),
        lambda weight: setattr(weight, "data", weight[32:]),
        lambda weight: setattr(weight, "data", weight.t()),
    ],
)
@torch.no_grad()
def test_another_weight_in_a_parameter_is_packed(change) -> None:
    weight = nn.Parameter(torch.randn(64, 64))
    _copy(weight)
    change(weight)
    assert torch.equal(_copy(weight).packed, pack(weight))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@torch.no_grad()
def test_a_packed_weight_leaves_its_file(tmp_path) -> None:
    save_file({"weight": torch.randn(1024, 1024)}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        weight = nn.Parameter(file.get_tensor("weight"))
    weight.sum()
    before = in_memory(weight)
    with PackedProducts():
        linear(torch.ones(1, 1024), weight)
    assert in_memory(weight) < before - weight.nbytes / 2


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(1, 8, dtype=torch.float64), "no kernel for inputs of Double"),
        (torch.ones(1, 8, dtype=torch.bfloat16), "and weights of Float"),
        (torch.ones(1, 9), "another number of inputs"),
        (torch.tensor(1.0), "another number of inputs"),
    ],
)
def test_what_it_has_no_kernel_for_is_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        operators().packed_linear(x, pack(torch.ones(64, 8)), 64)


def test_pairs_of_inputs_need_an_even_number() -> None:
    with pytest.raises(RuntimeError, match="another number of inputs"):
        operators().packed_linear(torch.ones(1, 9).bfloat16(), torch.ones(64, 9).bfloat16(), 64)


def test_no_output_is_allowed() -> None:
    assert operators().packed_linear(torch.ones(1, 8), torch.empty(0), 0).shape == (1, 0)


@pytest.mark.parametrize("int8_first", [True, False])
def test_weights_of_two_dtypes_with_one_input_stay_two_products(int8_first: bool) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [Int8Linear(nn.Linear(32, 48)), nn.Linear(32, 16)]
            self.layers = nn.ModuleList(layers if int8_first else layers[::-1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([layer(x) for layer in self.layers], -1)

    layer, x = Both(), torch.randn(5, 32)
    output, graphs = _compiled(layer, x)
    assert torch.allclose(output, layer(x), atol=1e-6)
    assert _names(graphs[0]).count("outrider.packed_linear.default") == 2


def test_without_a_compiler_graphs_stay_as_they_are(monkeypatch) -> None:
    def fails(name: str):
        raise CppCompileError(["g++"], "x.cpp:1: error: no such thing\n  ^~~")

    monkeypatch.setattr(cpp_operators, "_library", fails)
    for cached in (cpp_operators.operators, cpp_operators.is_available):
        cached.cache_clear()
    try:
        with pytest.warns(UserWarning, match="packed_linear.cpp fails to compile: x.cpp:1: error: no such thing"):
            _, graphs = _compiled(Layer(), torch.tensor([[3]]))
    finally:
        cpp_operators.is_available.cache_clear()
    assert "outrider.packed_linear.default" not in _names(graphs[0])
