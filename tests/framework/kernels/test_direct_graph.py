"""Calls of machine code without wrappers: the results of calls through them, and no others."""

import pytest
import torch
from torch._inductor import config as inductor
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.sym_node import DynamicInt

from framework.kernels.direct_graph import DirectGraph


@pytest.fixture
def compiled():
    """Compile a function; its `graphs` are those made so far."""
    graphs = []

    def backend(graph, examples):
        graphs.append(DirectGraph(compile_fx(graph, examples, config_patches={"cpp_wrapper": True, "freezing": False})))
        return graphs[-1]

    def of(run):
        function = torch.compile(run, backend=backend, fullgraph=True, dynamic=False)
        function.graphs = graphs
        return function

    return of


def fails(*inputs):
    raise RuntimeError("failed")


@torch.no_grad()
def test_weights_numbers_and_writes_need_no_wrapper(compiled):
    layer, kept = torch.nn.Linear(3, 3), torch.zeros(5, 3)

    def run(x, number):
        kept.index_copy_(0, torch.tensor([2]), layer(x))
        return kept[: int(number)].sum(0)

    function = compiled(run)
    with inductor.patch(freezing=True):  # weights are attributes, not inputs
        for number in (3, 2, 4):
            kept.zero_()
            x = torch.randn(1, 3)
            found = function(x, DynamicInt(number))
            torch.testing.assert_close(found, layer(x)[0] if number > 2 else torch.zeros(3))
            torch.testing.assert_close(kept[2], layer(x)[0])
            (graph,) = function.graphs
            assert len(graph._weights) == 2 and len(graph._numbers) == 1
            graph._call = fails
    with pytest.raises(RuntimeError, match="failed"), torch.enable_grad():
        graph()


@torch.no_grad()
def test_an_output_that_shares_memory_with_an_input_keeps_the_wrappers(compiled):
    function = compiled(lambda x: (x.add_(1), x.view(-1)))
    for _ in range(2):
        x = torch.ones(2, 2)
        same, view = function(x)
        assert same is x and view.tolist() == [2.0] * 4
        x.zero_()
        assert view.tolist() == [0.0] * 4
    assert function.graphs[0]._machine_code is None
