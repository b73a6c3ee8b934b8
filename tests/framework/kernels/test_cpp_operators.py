"""Functions of the C++ sources that compiled graphs call by name."""

import ctypes
import pickle
import sys

import pytest
import torch

from framework.kernels import packed_linear, small_attention
from framework.kernels.cpp_operators import DECLARATIONS, direct_calls, operators

OPTION = "aot_inductor.custom_ops_to_c_shims"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere graphs call operators by the dispatcher")
def test_every_operator_of_graphs_is_found_with_its_declared_function():
    for name in (packed_linear.NAME, small_attention.NAME):
        operator = getattr(operators(name), name).default
        assert operator in direct_calls()[OPTION]
        assert hasattr(ctypes.CDLL(None), f"aoti_torch_cpu_{name}")  # as graphs look for it
        arguments = DECLARATIONS[str(operator)].partition("(")[2].split(", ")
        names = [argument.name for argument in operator._schema.arguments]
        assert [each.rstrip(")").split()[-1] for each in arguments] == [*names, "result"]


def test_declarations_can_be_stored_with_the_key_of_a_graph():
    for declarations in direct_calls().values():
        again = pickle.loads(pickle.dumps(declarations))
        assert again == declarations and torch.ops.aten.add.Tensor not in again
