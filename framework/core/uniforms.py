"""Random numbers of a generation: functions of row seed and round, independent of the other rows in the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from framework.core.validation import check_whole

ROUNDS_PER_BLOCK = 32
NUMBERS_PER_COUNT = 4  # of Philox4x64
LARGEST_SEED = 2**128 - 1  # largest key of Philox


def check_seeds(seeds: Sequence[int], num_rows: int) -> None:
    """Check that there is one seed per row, each a whole number from 0 to LARGEST_SEED.

    Raises:
        ValueError: the number of seeds is wrong, or a seed is not such a number.
    """
    if len(seeds) != num_rows:
        raise ValueError(f"there are {len(seeds)} seeds for {num_rows} prompts; give one for each (seeds)")
    for seed in seeds:
        check_whole("seeds", seed, least=0, most=LARGEST_SEED)


@dataclass(frozen=True)
class RoundUniforms:
    """Random numbers of a round, split by use, or of a step of plain decoding.

    Attributes:
        numbers: [B, width(D)] float64 in [0, 1) on the device; [B, 1] in a step of plain decoding.
        on_host: the same numbers in host memory, for drafters that draw there; None: not needed.
    """

    numbers: Tensor
    on_host: Tensor | None = None

    @staticmethod
    def width(num_draft: int) -> int:
        """Numbers per row in a round whose drafter uses num_draft of them."""
        return 2 + num_draft

    @property
    def stop(self) -> Tensor:
        """[B]: decides the row where acceptance stops."""
        return self.numbers[:, 0]

    @property
    def next(self) -> Tensor:
        """[B]: decides the token emitted after that row."""
        return self.numbers[:, 1]

    @property
    def draft(self) -> Tensor:
        """[B, D]: the drafter's numbers."""
        return self.numbers[:, 2:]

    @property
    def draft_on_host(self) -> Tensor:
        """[B, D]: the drafter's numbers, in host memory."""
        assert self.on_host is not None, "the round has no numbers in host memory"
        return self.on_host[:, 2:]


class Uniforms:
    """Streams of uniforms, one per row, from a counter-based generator (Philox) keyed by the row's seed."""

    def __init__(self, seeds: list[int], width: int, device: torch.device):
        """
        Args:
            seeds: one per row, as `check_seeds` allows.
            width: numbers per row and round; another width gives another stream.
            device: device of the numbers.
        """
        self._seeds, self._width, self._device = list(seeds), width, device
        self._first_rounds = [0] * len(seeds)  # round of the generation with which the stream of each row begins
        self._block = self._host_block = torch.empty(0)
        self._rounds: list[RoundUniforms] = []  # of the block
        self._num_blocks, self._used = 0, ROUNDS_PER_BLOCK

    def next_round(self) -> RoundUniforms:
        """[B, width] numbers, fresh in every round."""
        if self._used == ROUNDS_PER_BLOCK:
            begins = [self._num_blocks * ROUNDS_PER_BLOCK - first for first in self._first_rounds]
            self._host_block = self._draw(self._seeds, begins, ROUNDS_PER_BLOCK)
            # A copy from pinned memory makes the host wait for nothing.
            block = self._host_block.pin_memory() if self._device.type == "cuda" else self._host_block
            self._block = block.to(self._device, non_blocking=True)
            self._rounds = [
                RoundUniforms(*numbers) for numbers in zip(self._block.unbind(), self._host_block.unbind(), strict=True)
            ]
            self._num_blocks, self._used = self._num_blocks + 1, 0
        self._used += 1
        return self._rounds[self._used - 1]

    def begin_rows(self, rows: list[int], seeds: list[int]) -> RoundUniforms:
        """Give R rows the streams of other seeds, from their beginning.

        Returns:
            [R, width] numbers: the first round of these streams, for the prefill of these rows alone. Their second
            round is part of the next `next_round`.
        """
        num_left = ROUNDS_PER_BLOCK - self._used
        numbers = self._draw(seeds, [0] * len(rows), 1 + num_left)
        for row, seed in zip(rows, seeds, strict=True):
            self._seeds[row] = seed
            self._first_rounds[row] = self._num_blocks * ROUNDS_PER_BLOCK - num_left - 1
        self._host_block[self._used :, rows] = numbers[1:]
        if self._block is not self._host_block:
            self._block[self._used :, rows] = numbers[1:].to(self._device)
        return RoundUniforms(numbers[0].to(self._device))

    def _draw(self, seeds: list[int], begins: list[int], number: int) -> Tensor:
        """[number, R, width] float64: `number` rounds of the stream of every seed, from its round begins[r] on.

        One generator is moved to each stream.
        """
        numbers = np.empty((len(seeds), number, self._width))
        philox = np.random.Philox(key=0)
        generator, state = np.random.Generator(philox), philox.state
        for row, (seed, begin) in enumerate(zip(seeds, begins, strict=True)):
            state["state"]["counter"][0], num_before = divmod(begin * self._width, NUMBERS_PER_COUNT)
            state["state"]["key"][:] = seed % 2**64, seed >> 64
            philox.state = state
            generator.random(num_before)
            generator.random(out=numbers[row])
        return torch.from_numpy(numbers.transpose(1, 0, 2).copy())
