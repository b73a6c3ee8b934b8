"""Messages between two processes through torch.distributed (gloo), with timeouts and byte counts.

A message is a kind and some arrays.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from framework.remote.serialization import pack, unpack

SIZE = 8  # bytes of a message's length prefix
DOWN, UP = 0, 1  # ranks: the requesting process, and the worker


class WorkerLost(ConnectionError):
    """The other process has ended, or was silent for longer than the timeout."""


@dataclass(frozen=True)
class Link:
    """Simulated link that delays messages by its latency and transfer time.

    Attributes:
        latency: one-way latency in seconds.
        bytes_per_second: bandwidth; inf: the delay is the latency only.
    """

    latency: float = 0.0
    bytes_per_second: float = float("inf")

    def seconds(self, num_bytes: int) -> float:
        """Seconds until `num_bytes` bytes have arrived."""
        return self.latency + num_bytes / self.bytes_per_second


class Transport:
    """One end of a connection between two processes.

    Attributes:
        sent: bytes sent so far, length prefixes included.
        received: bytes received so far, length prefixes included.
    """

    def __init__(self, store: dist.Store, *, rank: int, timeout: float, link: Link | None = None):
        """
        Args:
            store: rendezvous of the two processes.
            rank: DOWN or UP.
            timeout: seconds that the other process may be silent or not receive; a closed connection fails immediately.
            link: simulated link that delays this end's messages in both directions, in addition to the real transfer;
                None: no delay.

        Raises:
            WorkerLost: the other process does not connect.
        """
        gloo: Any = dist.ProcessGroupGloo  # a separate group: the default group belongs to the whole process
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout)
        self._store = store  # kept alive with the group
        self._timeout = timedelta(seconds=timeout)
        self._other = 1 - rank
        self._link = link
        self.sent = self.received = 0
        try:
            self._group = gloo(store, rank, 2, options)
        except RuntimeError as error:
            raise _lost(error) from error

    def send(self, kind: int, arrays: Sequence[np.ndarray] = ()) -> None:
        """Send one message.

        Raises:
            WorkerLost: the other process does not receive it.
        """
        message = pack(kind, arrays)
        self.sent += self._cross(len(message))
        try:
            for tensor in (torch.tensor([len(message)]), torch.frombuffer(bytearray(message), dtype=torch.uint8)):
                self._group.send([tensor], self._other, 0).wait(self._timeout)
        except RuntimeError as error:
            raise _lost(error) from error

    def receive(self) -> tuple[int, list[np.ndarray]]:
        """Receive one message: its kind and arrays.

        Raises:
            WorkerLost: no message arrives.
        """
        size = torch.zeros(1, dtype=torch.int64)
        try:
            self._group.recv([size], self._other, 0).wait(self._timeout)
            message = torch.empty(int(size), dtype=torch.uint8)
            self._group.recv([message], self._other, 0).wait(self._timeout)
        except RuntimeError as error:
            raise _lost(error) from error
        self.received += self._cross(len(message))
        return unpack(message.numpy().tobytes())

    def _cross(self, length: int) -> int:
        """Wait for the simulated link; returns the bytes of a message, its length prefix included."""
        num_bytes = length + SIZE
        if self._link is not None and (seconds := self._link.seconds(num_bytes)):
            time.sleep(seconds)
        return num_bytes


def _lost(error: RuntimeError) -> WorkerLost:
    return WorkerLost(str(error).strip().split("\n")[0][-200:])
