"""Messages between two processes over a socket, with timeouts, a limit on their size, and byte counts.

A message is a kind and some arrays. Nothing received is ever run or unpickled.
"""

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from framework.remote.serialization import MalformedMessage, pack, unpack

SIZE = struct.Struct("<Q")  # a message's length prefix
MOST_BYTES = 2**30  # 64 rows of 8 nodes with the whole q of 152k tokens take 0.3 GB


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
        timeout: seconds that a message may take to arrive or to be taken; a closed connection fails immediately.
        most_bytes: size of the largest message that is sent or received.
        sent: bytes sent so far, length prefixes included.
        received: bytes received so far, length prefixes included.
    """

    def __init__(self, connected: socket.socket, *, timeout: float, link: Link | None = None):
        """
        Args:
            connected: socket connected to the other process.
            timeout: as the attribute.
            link: simulated link that delays this end's messages in both directions, in addition to the real transfer;
                None: no delay.
        """
        self._socket = connected
        self._link = link
        self.timeout = timeout
        self.most_bytes = MOST_BYTES
        self.sent = self.received = 0

    def send(self, kind: int, arrays: Sequence[np.ndarray] = ()) -> None:
        """Send one message.

        Raises:
            WorkerLost: the other process does not receive it.
            MalformedMessage: it is too large.
        """
        message = pack(kind, arrays)
        self._check_size(len(message))
        self.sent += self._cross(len(message))
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(SIZE.pack(len(message)) + message)
        except OSError as error:
            raise _lost(error) from error

    def receive(self) -> tuple[int, list[np.ndarray]]:
        """Receive one message: its kind and arrays.

        Raises:
            WorkerLost: no whole message arrives.
            MalformedMessage: it is too large, which is noticed before memory is taken, or no message.
        """
        until = time.monotonic() + self.timeout
        (size,) = SIZE.unpack(self._receive(SIZE.size, until))
        self._check_size(size)
        message = self._receive(size, until)
        self.received += self._cross(size)
        return unpack(message)

    def close(self) -> None:
        """Close the connection, which the other process notices at once."""
        self._socket.close()

    def _receive(self, num_bytes: int, until: float) -> bytes:
        message = bytearray(num_bytes)
        left = memoryview(message)
        while left:
            try:
                self._socket.settimeout(max(until - time.monotonic(), 1e-6))
                number = self._socket.recv_into(left)
            except OSError as error:
                raise _lost(error) from error
            if not number:
                raise WorkerLost("it closed the connection")
            left = left[number:]
        return bytes(message)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.most_bytes:
            raise MalformedMessage(f"it has {num_bytes} bytes; allowed: at most {self.most_bytes}")

    def _cross(self, length: int) -> int:
        """Wait for the simulated link; returns the bytes of a message, its length prefix included."""
        num_bytes = length + SIZE.size
        if self._link is not None and (seconds := self._link.seconds(num_bytes)):
            time.sleep(seconds)
        return num_bytes


def _lost(error: OSError) -> WorkerLost:
    if isinstance(error, TimeoutError):
        return WorkerLost("it was silent for too long")
    return WorkerLost(error.strerror or str(error))
