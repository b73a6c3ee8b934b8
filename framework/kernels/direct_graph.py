"""Calls of a compiled graph's machine code, without the wrappers that PyTorch puts around it."""

from collections.abc import Callable
from inspect import unwrap
from typing import Any

import numpy as np
import torch
from torch import Tensor


class DirectGraph:
    """A graph that `compile_fx` compiled for a CPU; for one thread at a time.

    Its wrappers serve gradients, autocasting and outputs that share memory with inputs. If the first call shows that
    they only add weights before the inputs, later calls without gradients leave them out, and the version counters of
    written inputs as they are.
    """

    def __init__(self, compiled: Callable[..., Any]):
        self._call = compiled
        self._was_called = False
        self._machine_code: Callable[[list[Any]], Any] | None = None
        self._weights: list[Any] = []
        self._numbers: dict[int, tuple[np.ndarray, Tensor]] = {}

    def __call__(self, *inputs: Any) -> Any:
        if not self._was_called:
            return self._first_call(*inputs)
        if self._machine_code is None or torch.is_grad_enabled():
            return self._call(*inputs)
        arguments = [*self._weights, *inputs]
        for place, (number, tensor) in self._numbers.items():
            number[()] = inputs[place]
            arguments[len(self._weights) + place] = tensor
        return self._machine_code(arguments)

    def _first_call(self, *inputs: Any) -> Any:
        from torch._inductor.output_code import CompiledFxGraph  # takes seconds

        self._was_called = True
        graph = unwrap(self._call)
        if not isinstance(graph, CompiledFxGraph) or graph.current_callable is None:
            return self._call(*inputs)
        machine_code: Callable[[list[Any]], Any] = graph.current_callable
        seen: list[Any] = []

        def watched(arguments: list[Any]) -> Any:
            seen[:] = arguments  # machine code empties the list
            seen.append(machine_code(arguments))
            return seen[-1]

        graph.current_callable = watched
        try:
            outputs = self._call(*inputs)
        finally:
            graph.current_callable = machine_code
        *arguments, computed = seen
        num_weights = len(arguments) - len(inputs)
        if _same(arguments[num_weights:], inputs) and _same(computed, outputs):
            self._machine_code, self._weights = machine_code, arguments[:num_weights]
            # Machine code converts a number to a tensor, which takes longer than a change of the tensor's memory.
            for place, value in enumerate(inputs):
                if type(value) is int:
                    number = np.array(value, dtype=np.int64)
                    self._numbers[place] = number, torch.from_numpy(number)
        return outputs


def _same(some: Any, others: Any) -> bool:
    """Whether two sequences hold the same objects."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
