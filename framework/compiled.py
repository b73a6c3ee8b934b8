"""One program in place of a round's many calls: no Python runs, and nothing waits, between its parts."""

from collections.abc import Callable, Hashable
from typing import Any

import torch

# On a CPU the options matter more than the compiler: constant weights are packed, products are tuned for their few
# rows, and what calls the kernels is C++ as well.
CPU_OPTIONS = {
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP,ATEN",
    "cpp_wrapper": True,
}


class Compiled:
    """A function of tensors as a program for each of their shapes (torch.compile)."""

    def __init__(self, run: Callable[..., Any], device: torch.device):
        options: Any = CPU_OPTIONS if device.type == "cpu" else None
        self._run = torch.compile(run, fullgraph=True, dynamic=False, options=options)
        self._known: set[Hashable] = set()

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """Run the program of that shape; it is made when it is first asked for, which takes a minute.

        Args:
            shape: everything that may differ between calls but the values in tensors.
        """
        # Looking whether a program still fits what it was made of takes as long as a small model's pass.
        with torch.compiler.set_stance(skip_guard_eval_unsafe=shape in self._known):
            result = self._run(*arguments)
        self._known.add(shape)
        return result
