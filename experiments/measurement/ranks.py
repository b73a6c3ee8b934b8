"""Ranks: processes that share the batches of a measurement or training, started and placed by torchrun or submitit."""

import atexit
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # for the slowest rank; longer than a batch takes


class Ranks:
    """Number of this process and of all processes in a measurement.

    Attributes:
        number: of this process among those that share the batches.
        size: number of processes that share the batches.
        is_writer: whether this process writes the results.
    """

    def __init__(self, number: int = 0, size: int = 1, *, is_writer: bool | None = None):
        """
        Args:
            is_writer: None: whether this is process 0.
        """
        self.number, self.size = number, size
        self.is_writer = number == 0 if is_writer is None else is_writer

    def all_gather(self, own: T) -> list[T]:
        """Gather one picklable object per rank, in rank order.

        Every rank must make the same sequence of calls.

        Raises:
            ConnectionError: a rank has ended, or did not answer in time.
        """
        if self.size == 1:
            return [own]
        import torch.distributed as dist

        everybody: list[T | None] = [None] * self.size
        with self._losing_nobody():
            dist.all_gather_object(everybody, own)
        return everybody  # type: ignore[return-value]

    def average(self, tensors: "Sequence[Tensor]") -> None:
        """Replace tensors of equal shapes on all ranks, in place, by their means.

        Raises:
            ConnectionError: a rank has ended, or did not answer in time.
        """
        if self.size == 1:
            return
        import torch.distributed as dist

        with self._losing_nobody():
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def share(self, batch: "Tensor") -> "Tensor":
        """This rank's rows of a batch [B, ...], as many as those of every other rank.

        Raises:
            ValueError: the number of ranks does not divide B.
        """
        if len(batch) % self.size:
            raise ValueError(f"a batch has {len(batch)} rows; allowed: a multiple of the {self.size} processes")
        return batch.chunk(self.size)[self.number]

    def check_same(self, what: str, own: object) -> None:
        """
        Raises:
            ValueError: a value, described by `what`, differs between ranks.
        """
        if any(other != own for other in self.all_gather(own)):
            raise ValueError(f"{what} differs between the {self.size} processes; allowed: one folder and text for all")

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Keep the standard output of the block to the rank that writes the results."""
        with open(os.devnull, "w") as nowhere, nullcontext() if self.is_writer else redirect_stdout(nowhere):
            yield

    @contextmanager
    def _losing_nobody(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # gloo raises no narrower type
            reason = str(error).strip().splitlines()[0]
            raise ConnectionError(
                f"rank {self.number} of {self.size} lost another: it ended with an error, which it printed, or did not "
                f"answer within {TIMEOUT.total_seconds() / 60:g} minutes; run the same command again. {reason}"
            ) from error


@cache
def joined() -> Ranks:
    """Join the ranks that this process was started with; the first call waits for all of them."""
    if os.environ.get("SUBMITIT_EXECUTOR") and "RANK" not in os.environ:
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    if not started_together():
        return Ranks()
    import torch  # takes seconds, and every command asks for its ranks
    import torch.distributed as dist

    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())  # the default `cuda` device
    with_gpus = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group("cpu:gloo,cuda:nccl" if with_gpus else "gloo", timeout=TIMEOUT)
    atexit.register(dist.destroy_process_group)
    return Ranks(dist.get_rank(), dist.get_world_size())


def sharing_a_target() -> Ranks:
    """The ranks of processes that share one target: each measures every batch, and one writes the results."""
    return Ranks(is_writer=joined().number == 0)


def started_together() -> bool:
    """Whether torchrun, or a launcher with the same environment variables, started several processes."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def begun(pattern: str) -> str:
    """Start time formatted by strftime, the same on all ranks; used as a folder name."""
    return joined().all_gather(datetime.now().strftime(pattern))[0]


def check_devices(device: str, *, several: bool = False, share_cores: bool) -> None:
    """Check that ranks on one machine do not distort each other's timings.

    Args:
        device: the yaml's `device`.
        several: whether one target uses all GPUs.
        share_cores: whether ranks may share cores or a GPU.

    Raises:
        ValueError: ranks share the cores of a machine, or a GPU.
    """
    import torch

    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if joined().size > 1 else 1
    on_gpus = device in ("auto", "cuda") and torch.cuda.is_available() and not several
    if local_size > (torch.cuda.device_count() if on_gpus else 1) and not share_cores:
        raise ValueError(
            f"share_cores is false, and {local_size} ranks share this machine's cores, or a GPU (device={device}), "
            "which distorts their timings; start one rank per GPU or machine, or set share_cores=true if the timings "
            "are not used"
        )
