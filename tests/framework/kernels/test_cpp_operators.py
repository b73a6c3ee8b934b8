"""Functions of the C++ sources that compiled graphs call by name."""

import ctypes
import pickle

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping
from framework.kernels import cpp_operators, packed_linear, small_attention
from framework.kernels.cpp_operators import DECLARATIONS, direct_call_options, operators

OPTION = "aot_inductor.custom_ops_to_c_shims"
NAMES = (packed_linear.NAME, small_attention.NAME)

pytestmark = pytest.mark.skipif(not cpp_operators.CALLS_DIRECTLY, reason="graphs call operators by the dispatcher here")


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_is_found_with_the_function_of_its_source(name):
    operator, source = getattr(operators(name), name).default, cpp_operators.source_of(name).read_text()
    assert operator in direct_call_options()[OPTION] and str(operator) in DECLARATIONS
    assert hasattr(ctypes.CDLL(None), f"aoti_torch_cpu_{name}")  # as graphs look for it
    assert "".join(DECLARATIONS[str(operator)].split()) in "".join(source.split())


def test_declarations_survive_pickling():
    declarations = direct_call_options()[OPTION]
    again = pickle.loads(pickle.dumps(declarations))
    assert again == declarations and torch.ops.aten.add.Tensor not in again


@pytest.mark.slow
def test_a_graph_calls_them():
    decoder = Autoregressive(target=tiny_target(num_hidden_layers=1), sampling=Sampling(temperature=0), compiled=True)
    with torch._inductor.config.patch(force_disable_caches=True):
        _, (code, *_) = run_and_get_code(decoder.generate, [[5, 6]], stopping=Stopping(max_new_tokens=3), seeds=[0])
    assert "aoti_torch_cpu_packed_linear(buf" in code and "aoti_torch_call_dispatcher" not in code
