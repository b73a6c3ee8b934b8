"""Requests that arrive while others are decoded."""

import numpy as np
import pytest

from experiments.measurement.plan import Arrivals, Batch
from experiments.measurement.serving import ArrivalQueue, Served, predicted, serve
from framework.conformance.tiny_models import tiny_target
from framework.core.sampling import Sampling
from framework.decoding.autoregressive import Autoregressive
from framework.decoding.stopping import Stopping


def test_requests_arrive_at_the_given_rate_the_same_for_a_seed() -> None:
    arrivals = Arrivals(rate=4.0, latency_bound=1.0, seed=7)
    moments = arrivals.moments(10_004, 4)
    assert moments[:4] == [0.0] * 4 and moments == sorted(moments) == arrivals.moments(10_004, 4)
    assert moments != Arrivals(rate=4.0, latency_bound=1.0, seed=8).moments(10_004, 4)
    # Mean and deviation of an exponential distribution are equal; five standard errors: 1e-6.
    gaps = np.diff(moments[3:])
    assert len(gaps) == 10_000 and abs(gaps.mean() - 0.25) < 5 * 0.25 / 100
    assert abs(gaps.std() - 0.25) < 5 * 0.25 / 50
    assert Arrivals(rate=1.0, latency_bound=1.0, seed=0).moments(2, 8) == [0.0, 0.0]


def test_the_prediction_is_that_of_rounds_by_hand() -> None:
    """Two rows, rounds of 10 s, 1 s to read a prompt; the third request waits for a row, the last finds both idle."""
    found = predicted([0.0, 0.0, 3.0, 100.0], [1, 3, 2, 0], num_rows=2, round_seconds=10.0, prompt_seconds=1.0)
    # 0-2 read both; 12 the first ends; 13 the third is read; 23, 33 rounds, which end both; 100-101 reads the last.
    assert found.latencies == [12.0, 33.0, 30.0, 1.0] and found.seconds == 101.0
    alone = predicted([0.0, 0.0], [2, 2], num_rows=1, round_seconds=1.0, prompt_seconds=0.0)
    assert alone.latencies == [2.0, 4.0]


def test_goodput_counts_the_requests_within_the_bound() -> None:
    metrics = Served([1.0, 2.0, 3.0, 6.0], seconds=8.0).metrics(2.5, "serving")
    assert metrics["serving/goodput"] == 2 / 8 and metrics["serving/throughput"] == 4 / 8
    assert metrics["serving/latency_p50"] == 2.5


def test_a_decoder_waits_for_requests_and_serves_them_in_order() -> None:
    """The rows are idle between requests: a decoder is faster than they arrive."""
    target, num_requests = tiny_target(num_hidden_layers=1), 6
    decoder = Autoregressive(target=target, sampling=Sampling(temperature=0))
    stopping, arrivals = Stopping(max_new_tokens=3), Arrivals(rate=10.0, latency_bound=1.0, seed=0)
    numbers = list(range(num_requests))
    batch = Batch(0, numbers, [[5, 6, number] for number in numbers], numbers, num_rows=2)
    moments = arrivals.moments(num_requests, 2)
    found = serve(decoder, batch, stopping, arrivals)
    assert found.seconds >= moments[-1] and len(found.latencies) == num_requests
    assert all(latency > 0 for latency in found.latencies)  # none ends before it arrives
    ends = [moment + latency for moment, latency in zip(moments, found.latencies, strict=True)]
    assert ends[2:] == sorted(ends[2:]) and found.seconds == pytest.approx(max(ends))

    queue = ArrivalQueue(moments, 2)
    together = decoder.generate(batch.prompts, stopping=stopping, seeds=numbers, queue=queue).tokens
    assert together == decoder.generate(batch.prompts, stopping=stopping, seeds=numbers).tokens


def test_a_prompt_is_not_taken_before_it_arrives() -> None:
    queue = ArrivalQueue([0.0, 1000.0], 1)
    assert not queue.take(0) and queue.num_waiting == 1 and queue.in_row == [0]
    late = ArrivalQueue([0.0, -1000.0], 1)
    late.wait()
    assert late.take(0) and late.in_row == [1] and not late.take(0)
