"""Random numbers of a generation: a function of row seed and round, never of the batch around the row."""

import numpy as np
import torch
from torch import Tensor

ROUNDS_PER_BLOCK = 32


class Uniforms:
    """Streams of uniforms, one per row, drawn from a counter-based generator (Philox) keyed by the row's seed."""

    def __init__(self, seeds: list[int], width: int, device: torch.device):
        """
        Args:
            seeds: one per row, each >= 0.
            width: numbers a row uses per round; part of the stream's definition.
            device: where the numbers are wanted.
        """
        self._generators = [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]
        self._width = width
        self._device = device
        self._block = self._host_block = torch.empty(0)
        self._used = ROUNDS_PER_BLOCK

    def next_round(self) -> Tensor:
        """[B, width] float64 in [0, 1), fresh in every round."""
        if self._used == ROUNDS_PER_BLOCK:
            block = np.stack([g.random((ROUNDS_PER_BLOCK, self._width)) for g in self._generators], axis=1)
            self._host_block = torch.from_numpy(block)
            self._block, self._used = self._host_block.to(self._device), 0
        self._used += 1
        return self._block[self._used - 1]

    def of_this_round_on_host(self) -> Tensor:
        """The same numbers as `next_round` gave last, for whoever draws on the host."""
        return self._host_block[self._used - 1]
