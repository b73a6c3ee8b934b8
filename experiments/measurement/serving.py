"""Requests that arrive while others are decoded: latencies and goodput, measured and predicted."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.measurement.plan import Arrivals, Batch
from experiments.measurement.timing import Decoder, in_rows
from framework.decoding.refill import Queue
from framework.decoding.stopping import Stopping

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Served:
    """Requests in the order of their arrival.

    Attributes:
        latencies: per request, seconds from its arrival to its end.
        seconds: end of the last one, after the arrival of the first.
    """

    latencies: list[float]
    seconds: float

    def metrics(self, bound: float, prefix: str = "serving") -> dict[str, float]:
        """Goodput, requests per second that end within `bound` seconds, and percentiles of the latency."""
        within = sum(latency <= bound for latency in self.latencies)
        latencies = np.percentile(self.latencies, PERCENTILES).tolist()
        return {
            f"{prefix}/goodput": within / self.seconds,
            f"{prefix}/throughput": len(self.latencies) / self.seconds,
            **{f"{prefix}/latency_p{share}": latency for share, latency in zip(PERCENTILES, latencies, strict=True)},
        }


class ArrivalQueue(Queue):
    """A queue whose prompts can be taken from the moment of their arrival on.

    Attributes:
        ends: per prompt, seconds from the first arrival to its end; complete once all are finished.
    """

    def __init__(self, moments: Sequence[float], num_rows: int):
        """
        Args:
            moments: seconds at which the prompts arrive, ascending; those of the first num_rows are not waited for.
            num_rows: rows that decode at the same time.
        """
        super().__init__(len(moments), num_rows)
        self.ends = [0.0] * len(moments)
        self._moments, self._start = moments, time.perf_counter()

    def finish(self, number: int) -> None:
        self.ends[number] = self._now()

    def take(self, row: int) -> bool:
        return bool(self._waiting) and self._moments[self._waiting[0]] <= self._now() and super().take(row)

    def wait(self) -> None:
        time.sleep(max(0.0, self._moments[self._waiting[0]] - self._now()))

    def _now(self) -> float:
        return time.perf_counter() - self._start


def serve(decoder: Decoder, batch: Batch, stopping: Stopping, arrivals: Arrivals) -> Served:
    """Decode the prompts of a batch as they arrive, in batch.num_rows rows."""
    assert batch.num_rows is not None, "arrivals need refill"
    moments = arrivals.moments(len(batch.prompts), batch.num_rows)
    queue = ArrivalQueue(moments, batch.num_rows)
    decoder.generate(batch.prompts, stopping=stopping, seeds=batch.seeds, **in_rows(queue))
    return _served(moments, queue.ends)


def predicted(
    moments: Sequence[float],
    rounds: Sequence[int],
    *,
    num_rows: int,
    round_seconds: float,
    prompt_seconds: float,
) -> Served:
    """Serve the same requests in a loop without overhead, whose rounds take the time of their parts.

    Args:
        moments: seconds at which the prompts arrive, ascending.
        rounds: per prompt, the rounds that it needs.
        num_rows: rows that decode at the same time.
        round_seconds: time of a round, whatever the number of rows that still decode.
        prompt_seconds: time to read one prompt, in which no row decodes.
    """
    now, ends = 0.0, [0.0] * len(moments)
    waiting, left = deque(range(len(moments))), dict[int, int]()
    while waiting or left:
        if not left:
            now = max(now, moments[waiting[0]])
        while waiting and len(left) < num_rows and moments[waiting[0]] <= now:
            number = waiting.popleft()
            now += prompt_seconds
            ends[number] = now
            if rounds[number]:
                left[number] = rounds[number]
        now += round_seconds if left else 0.0
        for number in list(left):
            ends[number] = now
            left[number] -= 1
            if not left[number]:
                del left[number]
    return _served(moments, ends)


def _served(moments: Sequence[float], ends: Sequence[float]) -> Served:
    return Served([end - moment for end, moment in zip(ends, moments, strict=True)], max(ends))
