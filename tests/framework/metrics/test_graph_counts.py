"""Graphs counted within a block: compilations, recordings and what was not recorded."""

import torch
from torch._dynamo.callback import CallbackTrigger, callback_handler
from torch._dynamo.utils import counters

from framework.metrics.graph_counts import GraphCounts, counted_graphs


def test_graphs_are_counted_where_they_are_made():
    double = torch.compile(lambda x: 2 * x, backend="eager", dynamic=False)
    with counted_graphs() as outer:
        with counted_graphs() as first:
            double(torch.ones(2))
            double(torch.ones(2))
        with counted_graphs() as second:
            double(torch.ones(3))
            with callback_handler.install_callbacks(CallbackTrigger.CUDAGRAPH_RECORDING, "0/0"):
                pass
            counters["inductor"]["cudagraph_skips"] += 1
    double(torch.ones(4))
    assert (first, second) == (GraphCounts(compiled=1), GraphCounts(compiled=1, captured=1, skipped=1))
    assert outer == first + second
