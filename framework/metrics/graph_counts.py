"""Counts of the graphs that torch.compile makes, by its own callbacks and counters."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch._dynamo.callback import CallbackArgs, CallbackTrigger, callback_handler
from torch._dynamo.utils import counters


@dataclass
class GraphCounts:
    """Graphs made within a block.

    Attributes:
        compiled: functions compiled, those whose kernels were found in the compiler's cache included.
        captured: CUDA graphs recorded.
        skipped: compiled graphs of a GPU that did not become CUDA graphs.
    """

    compiled: int = 0
    captured: int = 0
    skipped: int = 0

    def __add__(self, other: "GraphCounts") -> "GraphCounts":
        return GraphCounts(self.compiled + other.compiled, self.captured + other.captured, self.skipped + other.skipped)


@contextmanager
def counted_graphs() -> Iterator[GraphCounts]:
    """Count the graphs made within a block; the counts are complete at its end."""
    counts, skipped = GraphCounts(), counters["inductor"]["cudagraph_skips"]

    def on_start(made: CallbackArgs) -> None:
        counts.compiled += made.callback_trigger is CallbackTrigger.DYNAMO
        counts.captured += made.callback_trigger is CallbackTrigger.CUDAGRAPH_RECORDING

    callback_handler.register_start_callback(on_start)
    try:
        yield counts
    finally:
        callback_handler.remove_start_callback(on_start)
        counts.skipped += counters["inductor"]["cudagraph_skips"] - skipped
