"""One program in place of a round's many calls: no Python runs, and nothing waits, between its parts."""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch._inductor import config as inductor

# On a CPU the options matter more than the compiler: constant weights are packed, products of few rows get kernels of
# their own, and what calls the kernels is C++ as well.
CPU_OPTIONS = {
    "freezing": True,
    "max_autotune": True,
    "max_autotune_gemm_backends": "CPP",
    "cpp_wrapper": True,
}


class Compiled:
    """A function of tensors as a program for each of their shapes (torch.compile)."""

    def __init__(self, run: Callable[..., Any], device: torch.device):
        self._run = run
        self._options = CPU_OPTIONS if device.type == "cpu" else {}
        self._programs: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, shape: Hashable, *arguments: Any) -> Any:
        """Run the program of that shape; it is made when it is first asked for, which takes a minute.

        Args:
            shape: everything that may differ between calls but the values in tensors.
        """
        if shape in self._programs:
            return self._programs[shape](*arguments)
        self._programs[shape] = torch.compile(
            self._run,
            fullgraph=True,
            dynamic=False,
            isolate_recompiles=True,
            # `shape` says which program fits; looking again takes as long as a small model's pass.
            options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
        )
        # Weights count as constants only where `freezing` is set before tracing begins, not among torch.compile's
        # options. Those that oneDNN packs cannot be kept in the cache on disk; the compiler's own can.
        with inductor.patch(self._options), torch.backends.mkldnn.flags(enabled=False):
            return self._programs[shape](*arguments)
