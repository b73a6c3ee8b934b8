"""Compiled graphs (torch.compile): a function of tensors as one call, without Python or synchronisation in between."""

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor import config as inductor
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx import GraphModule
from torch.fx.experimental.sym_node import DynamicInt

from framework.kernels.cpp_operators import direct_call_options
from framework.kernels.direct_graph import DirectGraph
from framework.kernels.packed_linear import PackedProducts, use_packed_linear
from framework.kernels.vector_instructions import TESTED, vector_instructions

# On a CPU these options matter more than compilation itself. Weights are inputs of the machine code, which the
# compiler's cache on the disk then keeps together with the graph that it was made from, for all models of equal shapes.
CPU_OPTIONS = {
    "freezing": False,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "cpp_wrapper": True,
    "cpp_wrapper_build_separate": True,  # calls between kernels with -O1: a cold start takes three quarters of the time
    "size_asserts": False,
    **TESTED,
    "realize_opcount_threshold": 8,  # otherwise the rotary embedding of a query is recomputed for every key
}
GPU_OPTIONS = {"triton.cudagraphs": True}
LOG = logging.getLogger(__name__)
MOST_NUMBERS = 64  # compiled graphs of one shape, each for other Python numbers among the arguments


def why_not(device: torch.device) -> str | None:
    """Reason why graphs for this device cannot be compiled on this machine; None: they can."""
    if device.type != "cpu":
        return None
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler; install g++ or clang++, or name one in CXX"
    return None


def packs_weights(device: torch.device) -> bool:
    """Whether graphs for this device read packed weights."""
    return device.type == "cpu"


def eager_products(device: torch.device) -> AbstractContextManager[object]:
    """Context of eager passes beside graphs for this device, whose products they then share."""
    return PackedProducts() if packs_weights(device) else nullcontext()


def runs_later(device: torch.device) -> bool:
    """Whether a graph's call returns before its work is done, so that the next one can be queued meanwhile."""
    return device.type != "cpu"


class Varying(int):
    """A number that changes from call to call: an input of a compiled graph on a CPU."""


class Compiled:
    """A function of tensors, compiled once per shape of its arguments (torch.compile)."""

    def __init__(self, run: Callable[..., Any], device: torch.device, *, name: str):
        """
        Args:
            run: the function.
            device: device of its tensors.
            name: name of the computation in the log.
        """
        self._run = run
        self._device = device
        self._name = name
        self._graphs: dict[Hashable, _Graphs] = {}

    def has(self, shape: Hashable) -> bool:
        """Whether a graph of this shape has been compiled."""
        return shape in self._graphs

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """Run the graph of this shape; the first call with a shape compiles it, which takes a minute and is logged.

        Args:
            shape: shapes of all tensors, or values that determine them.
            arguments: tensors, and objects that hold them. The Python numbers among them are guarded: another number
                compiles another graph, unless it is `Varying`. Numbers of modules and classes, and defaults of keyword
                arguments, are constants.
        """
        if shape in self._graphs:
            return self._graphs[shape](*arguments)
        LOG.info("compiling %s: a minute, or seconds from the compiler's cache", self._name)
        start = time.perf_counter()
        graphs = _Graphs(self._run, on_cpu=packs_weights(self._device))
        result = graphs(*arguments)
        self._graphs[shape] = graphs
        LOG.info("compiled %s in %.0f s", self._name, time.perf_counter() - start)
        return result


class _Graphs:
    """Compiled graphs of a function for one shape of its tensors, each for other numbers among its arguments.

    On a CPU a graph that fits is called directly: torch.compile's own call takes 0.1 ms more. On a GPU that call is
    needed, since it begins a new step of the CUDA graphs.
    """

    def __init__(self, run: Callable[..., Any], *, on_cpu: bool):
        self._function = _with_own_code(run)
        self._on_cpu = on_cpu
        self._many = torch._dynamo.config.patch(recompile_limit=MOST_NUMBERS)
        self._compile: Callable[..., Any] = torch.compile(
            self._function,
            fullgraph=True,
            dynamic=False,
            backend=BACKENDS["cpu" if on_cpu else "cuda"],
            options={"guard_filter_fn": _numbers_only},
        )
        self._traces: list[_Trace] = []

    def __call__(self, *arguments: Any) -> Any:
        for trace in self._traces:
            if trace.fits(arguments):
                return trace.run(*arguments)
        with _weights_as_attributes() if self._on_cpu else nullcontext(), self._many:
            result = self._compile(*(DynamicInt(each) if isinstance(each, Varying) else each for each in arguments))
        if self._on_cpu:
            self._traces = _traces(self._function)
        return result


@dataclass(frozen=True)
class _Trace:
    """A trace of a function: code that prepares the arguments of its graph, runs it and stores its results.

    Attributes:
        run: the function with this code.
        guards: conditions on its arguments, by name.
    """

    run: Callable[..., Any]
    guards: Any

    def fits(self, arguments: tuple[Any, ...]) -> bool:
        """Whether the trace holds for the numbers among these arguments."""
        owner = (self.run.__self__,) if isinstance(self.run, MethodType) else ()
        return bool(self.guards.check(dict(zip(self.run.__code__.co_varnames, (*owner, *arguments), strict=False))))


def _traces(run: Callable[..., Any]) -> list[_Trace]:
    """Traces that torch.compile has made of a function; they outlast `torch._dynamo.reset`, which empties globals."""
    names = {**run.__globals__}
    for name, value in names.items():
        if name.startswith("__compiled_fn"):  # the graph, in a wrapper that only keeps torch.compile from tracing it
            names[name] = getattr(value, "_torchdynamo_orig_callable", value)
    return [
        _Trace(_with_code(run, entry.code, names), entry.guard_manager)
        for entry in _debug_get_cache_entry_list(run.__code__)
    ]


def _with_own_code(run: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a copy of its code; graphs are kept by code, and another model's would fit the guards."""
    return _with_code(run, run.__code__.replace(), run.__globals__)


def _with_code(run: Callable[..., Any], code: CodeType, names: dict[str, Any]) -> Callable[..., Any]:
    """The same function or method with other code and globals."""
    function = getattr(run, "__func__", run)
    copy = FunctionType(code, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return MethodType(copy, run.__self__) if isinstance(run, MethodType) else copy


def _weights_as_attributes() -> AbstractContextManager[None]:
    """Trace weights as attributes, which `use_packed_linear` can replace by packed ones."""
    return inductor.patch(freezing=True)


def _on_cpu(graph: GraphModule, examples: list[Tensor]) -> Any:
    """Compile with packed weights."""
    from torch._inductor.compile_fx import compile_fx  # takes seconds
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    vector_instructions()  # makes and tests the list that TESTED vouches for
    use_packed_linear(graph)
    hooks = get_algorithm_selector_cache().preprocessing_fns
    hooks.append(_without_library_kernels)
    try:
        compiled: Any = compile_fx(graph, examples, config_patches=CPU_OPTIONS | direct_call_options())
        return DirectGraph(compiled)
    finally:
        hooks.remove(_without_library_kernels)  # other hooks may not be ours


def _without_library_kernels(choices: list[Any]) -> list[Any]:
    """Kernels that the compiler writes itself, if there are any; timing all is slow, and varies on a busy machine."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    return [choice for choice in choices if not isinstance(choice, ExternKernelCaller)] or choices


def _on_gpu(graph: GraphModule, examples: list[Tensor]) -> Any:
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, examples, config_patches=GPU_OPTIONS)


BACKENDS: dict[str, Any] = {"cpu": _on_cpu, "cuda": _on_gpu}


def _numbers_only(guards: Sequence[Any]) -> list[bool]:
    """Select the guards to check before a graph is reused: those on numbers, but no constants (`Compiled`).

    Checking every tensor of a model would take as long as its forward pass.
    """
    return [
        guard.guard_type == "SHAPE_ENV"  # conditions on inputs that are numbers
        or (
            guard.guard_type in ("EQUALS_MATCH", "CONSTANT_MATCH")
            and type(guard.value) in (int, float, bool)
            and not guard.is_global
            and not guard.orig_guard.source.is_unspecialized_nn_module()
            and not any(part in guard.name for part in ("type(", "__kwdefaults__"))
        )
        for guard in guards
    ]
