"""Messages between two processes, through torch.distributed (gloo); every wait has an end, and every byte is counted.

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

from framework.packing import pack, unpack

SIZE = 8  # bytes that say how long a message is
DOWN, UP = 0, 1  # ranks: who asks, and who answers


class PeerLost(ConnectionError):
    """The other process is gone, or silent for longer than was allowed."""


@dataclass(frozen=True)
class Link:
    """A link that is slower than the one there is: what is sent over it waits as long as it would take.

    Attributes:
        latency: seconds, one way.
        bytes_per_second: inf waits for the latency only.
    """

    latency: float = 0.0
    bytes_per_second: float = float("inf")

    def seconds(self, num_bytes: int) -> float:
        """Until so many bytes have arrived."""
        return self.latency + num_bytes / self.bytes_per_second


class Channel:
    """One end of it.

    Attributes:
        sent: bytes so far.
        received: likewise.
    """

    def __init__(self, store: dist.Store, *, rank: int, timeout: float, link: Link | None = None):
        """
        Args:
            store: where the two find each other.
            rank: DOWN or UP.
            timeout: seconds that the other may be silent, or not listen; that it has closed its end shows at once.
            link: what this end's messages, both ways, take in time beside what they really take.

        Raises:
            PeerLost: the other does not come.
        """
        gloo: Any = dist.ProcessGroupGloo  # a group of its own: the default one is the whole process's
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout)
        self._store = store  # which must live as long as this
        self._timeout = timedelta(seconds=timeout)
        self._other = 1 - rank
        self._link = link
        self.sent = self.received = 0
        try:
            self._group = gloo(store, rank, 2, options)
        except RuntimeError as error:
            raise _lost(error) from error

    def send(self, kind: int, arrays: Sequence[np.ndarray] = ()) -> None:
        """
        Raises:
            PeerLost: nobody takes it.
        """
        message = pack(kind, arrays)
        self.sent += self._cross(len(message))
        try:
            for tensor in (torch.tensor([len(message)]), torch.frombuffer(bytearray(message), dtype=torch.uint8)):
                self._group.send([tensor], self._other, 0).wait(self._timeout)
        except RuntimeError as error:
            raise _lost(error) from error

    def receive(self) -> tuple[int, list[np.ndarray]]:
        """
        Raises:
            PeerLost: nothing comes.
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
        """Wait for the link; returns the bytes of a message, its size before it included."""
        num_bytes = length + SIZE
        if self._link is not None and (seconds := self._link.seconds(num_bytes)):
            time.sleep(seconds)
        return num_bytes


def _lost(error: RuntimeError) -> PeerLost:
    return PeerLost(str(error).strip().split("\n")[0][-200:])
