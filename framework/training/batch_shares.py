"""Losses of batches that processes share: their mean gradient is the gradient of the whole batch."""

import torch
import torch.distributed as dist
from torch import Tensor

from framework.training.trainable import ids_of


def mean_over_processes(count: Tensor) -> Tensor:
    """Mean of a count over the processes of a data-parallel training, in a single one the count itself; 1 for zero.

    A sum of losses is divided by this mean, not by the count of a process's own share, since with padding the shares
    hold different numbers of tokens. Every process must make the same sequence of calls.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return count.clamp(min=1)
    total = count.double()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).where(total > 0, 1.0).float()


def uniforms_per_window(tokens: Tensor, *size: int) -> Tensor:
    """[B, *size] float64 uniforms, those of a window determined by its token ids alone.

    A repeated step has the same ones, and so has a window in a share of its batch.

    Args:
        tokens: [B, T] or [B, 2, T] int64.
    """
    seeds = ids_of(tokens).flatten(1).sum(1).tolist()
    draws = [torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(draws).to(tokens.device)
