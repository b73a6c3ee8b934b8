"""Compiled graphs: one per shape and number, called directly, and no hook left in the compiler."""

import pytest
import torch
from torch._inductor.select_algorithm import get_algorithm_selector_cache

from framework.kernels import compiled_graphs

pytestmark = pytest.mark.usefixtures("quickly")


def test_only_our_own_hook_leaves_the_compilers_list(monkeypatch):
    hooks = get_algorithm_selector_cache().preprocessing_fns

    def theirs(choices):
        return choices

    before, during = [*hooks, theirs], []
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda *graph, config_patches: during.extend(hooks))
    hooks.append(theirs)
    try:
        compiled_graphs._on_cpu(torch.fx.symbolic_trace(torch.nn.ReLU()), [])
        assert during == [*before, compiled_graphs._without_library_kernels] and hooks == before
    finally:
        hooks.remove(theirs)


def test_graphs_are_called_directly_and_outlast_a_reset(monkeypatch):
    graph = compiled_graphs.Compiled(lambda tensor, number: tensor * number, torch.device("cpu"), name="a product")
    three, compile_calls = torch.ones(3), []
    assert [graph(3, three, number).tolist() for number in (2, 5)] == [[2.0] * 3, [5.0] * 3]
    monkeypatch.setattr(graph._graphs[3], "_compile", lambda *arguments: compile_calls.append(arguments))
    torch._dynamo.reset()
    assert [graph(3, three + 1, number).tolist() for number in (5, 2)] == [[10.0] * 3, [4.0] * 3]
    graph(3, three, 7)
    assert len(compile_calls) == 1


def test_a_number_that_varies_needs_no_other_graph(monkeypatch):
    graph = compiled_graphs.Compiled(lambda tensor, number: tensor[:number] + 1, torch.device("cpu"), name="a sum")
    assert graph(4, torch.zeros(4), compiled_graphs.Varying(2)).tolist() == [1.0] * 2
    monkeypatch.setattr(graph._graphs[4], "_compile", None)
    assert graph(4, torch.zeros(4), compiled_graphs.Varying(3)).tolist() == [1.0] * 3


def test_numbers_of_objects_are_guarded_those_of_classes_and_defaults_are_constants():
    class Line:
        slope = 2

        def __init__(self) -> None:
            self.offset = 1

        def at(self, tensor: torch.Tensor, *, times: int = 3) -> torch.Tensor:
            return (tensor * self.slope + self.offset) * times

    graph = compiled_graphs.Compiled(lambda tensor, line: line.at(tensor), torch.device("cpu"), name="a line")
    line = Line()
    assert graph(1, torch.ones(1), line).tolist() == [9.0]
    guards = str(graph._graphs[1]._traces[0].guards)
    assert "L['line'].offset" in guards and "type(" not in guards and "__kwdefaults__" not in guards
    line.offset = 2
    assert graph(1, torch.ones(1), line).tolist() == [12.0]


def test_a_failed_compilation_leaves_no_graph():
    def broken(tensor):
        raise NotImplementedError

    graph = compiled_graphs.Compiled(broken, torch.device("cpu"), name="nothing")
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        graph(3, torch.ones(3))
    assert not graph.has(3)
