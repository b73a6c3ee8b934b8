"""Summary of a round, packed into one tensor so that the host synchronises once.

B rows, M most tokens that a row may commit in a round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class HostCopy:
    """A packed summary on its way to the host, queued behind the work that computes it.

    The graph that made the summary may run again at once: only `tolist` waits.
    """

    def __init__(self, packed: Tensor):
        is_queued = packed.device.type != "cpu"
        numbers = torch.empty_like(packed, device="cpu", pin_memory=is_queued)
        self._numbers = numbers.copy_(packed, non_blocking=is_queued)
        self._is_done = torch.get_device_module(packed.device).Event() if is_queued else None
        if self._is_done is not None:
            self._is_done.record()

    def tolist(self) -> list[list[int]]:
        """The numbers of each row; waits for the copy."""
        if self._is_done is not None:
            self._is_done.synchronize()
        rows: list[list[int]] = self._numbers.tolist()
        return rows


class Pipeline:
    """Runs of the device's part of a round, the next of which can be queued before the host reads a summary.

    A GPU then computes the next round while the host reads this one. The host must change nothing in between.
    """

    def __init__(self) -> None:
        self._queued: Tensor | None = None

    def next_summary(self, run: Callable[[], Tensor], *, another: bool) -> Tensor | HostCopy:
        """Packed summary of the next run.

        Args:
            run: runs once and returns the packed summary, which the run after it overwrites.
            another: whether to queue one more run, whose summary is the next.
        """
        packed, self._queued = run() if self._queued is None else self._queued, None
        if not another:
            return packed
        summary = HostCopy(packed)
        self._queued = run()
        return summary


@dataclass  # not frozen: one is made in every round, and a frozen one takes longer to construct
class StepSummary(Generic[T]):
    """Summary of a step of plain decoding: tensors on the device, lists on the host.

    Attributes:
        COLUMNS: fields with one number per row, in the order of their definition; they are packed before the tokens.
        tokens: [B, M] int64: the first num_committed[b] of row b are committed.
        num_committed: [B] int64.
        healthy: [B] bool: whether the sampled distributions are finite and not all zero.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("num_committed", "healthy")

    tokens: T
    num_committed: T
    healthy: T

    def pack(self) -> Tensor:
        """[B, columns + M] int64."""
        columns: list[Any] = [getattr(self, name) for name in self.COLUMNS]
        tokens: Any = self.tokens
        return torch.cat([torch.stack(columns, 1), tokens], 1)

    @classmethod
    def unpack(cls, packed: Tensor | HostCopy) -> Self:
        """Lists of the fields that `pack` packed; waits for the device."""
        return cls._of(packed.tolist())

    @classmethod
    def _of(cls, rows: list[list[int]], *last_columns: list[int]) -> Self:
        """Lists of the fields from packed rows, except for the last columns, which are given."""
        num_columns = len(cls.COLUMNS) - len(last_columns)
        columns: Any = map(list, islice(zip(*rows, strict=True), num_columns))
        tokens: Any = [row[num_columns:] for row in rows]
        return cls(tokens, *columns, *last_columns)


@dataclass
class RoundSummary(StepSummary[T]):
    """Summary of a speculative round.

    Attributes:
        num_nodes: [B] int64: nodes of the draft, the same for all rows.
        offered: [B] int64: depth of the deepest node offered.
        accepted: [B] int64: depth of the deepest node accepted.
        rejected: [B] bool: whether a child of that node was offered and rejected.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*StepSummary.COLUMNS, "num_nodes", "offered", "accepted", "rejected")

    num_nodes: T
    offered: T
    accepted: T
    rejected: T

    @classmethod
    def unpack(cls, packed: Tensor | HostCopy) -> Self:
        """As `StepSummary.unpack`; a packed `StepSummary` of one token becomes that of a round without a draft."""
        rows = packed.tolist()
        if len(rows[0]) == len(StepSummary.COLUMNS) + 1:
            zeros = [0] * len(rows)
            return cls._of(rows, zeros, zeros, zeros, zeros)
        return cls._of(rows)
