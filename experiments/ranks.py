"""The processes that measure together, each some of the batches; torchrun, or submitit, starts and places them."""

import os
from datetime import datetime, timedelta
from functools import cache
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)  # that a rank waits for the slowest: longer than a batch takes


class Ranks:
    """All processes of a measurement, and which of them this is. Number 0 writes what there is to write."""

    def __init__(self, number: int = 0, size: int = 1):
        self.number, self.size = number, size

    def all(self, own: T) -> list[T]:
        """What every rank hands in here, by their numbers. Every rank must come, as often as the others.

        Raises:
            ConnectionError: a rank has ended, or did not come in time.
        """
        if self.size == 1:
            return [own]
        everybody: list[T | None] = [None] * self.size
        try:
            dist.all_gather_object(everybody, own)
        except RuntimeError as error:  # whatever the network says
            reason = str(error).strip().splitlines()[0]
            raise ConnectionError(
                f"rank {self.number} of {self.size} lost another: it ended, which it says itself, or did not answer "
                f"within {PATIENCE.total_seconds() / 60:g} minutes; the same command measures again. {reason}"
            ) from error
        return everybody  # type: ignore[return-value]


@cache
def joined() -> Ranks:
    """The ranks that this process was started with; the first call waits until all are there."""
    if os.environ.get("SUBMITIT_EXECUTOR") and "RANK" not in os.environ:
        from submitit.helpers import TorchDistributedEnvironment

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
    if not started_together():
        return Ranks()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())  # what `cuda` means from here
    dist.init_process_group("gloo", timeout=PATIENCE)
    return Ranks(dist.get_rank(), dist.get_world_size())


def started_together() -> bool:
    """Whether torchrun, or what speaks like it, started several processes."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def begun(pattern: str) -> str:
    """The time, the same for all ranks, as strftime writes it: a folder's name."""
    return joined().all(datetime.now().strftime(pattern))[0]


def check_devices(device: str, *, several: bool = False, share_cores: bool) -> None:
    """See that no times are falsified by ranks beside each other.

    Args:
        device: as the yaml says it.
        several: whether a target takes all GPUs there are.
        share_cores: whether that does not matter.

    Raises:
        ValueError: ranks share the cores of a machine, or a GPU.
    """
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if joined().size > 1 else 1
    on_gpus = device in ("auto", "cuda") and torch.cuda.is_available() and not several
    if beside > (torch.cuda.device_count() if on_gpus else 1) and not share_cores:
        raise ValueError(
            f"share_cores is false, and {beside} ranks share this machine's cores, or a GPU (device={device}), which "
            "falsifies their times; start one for each GPU or machine, or set share_cores=true if the times are not "
            "used"
        )
