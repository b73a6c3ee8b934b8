"""State that compiled rounds update in place: a CUDA graph reads and writes at fixed addresses."""

from typing import Any

import torch
from torch import Tensor

from framework.core.memory import mapped_zeros

# Device types whose graphs take addresses with every call; they would take marked tensors for constants, like weights.
UNMARKED = ("cpu",)


class FixedBuffer:
    """Memory for a tensor that every generation makes anew; on a GPU at the same address whatever its shape.

    That memory grows and never shrinks. CUDA graphs update it where it lies, and are recorded again once it has moved.
    """

    def __init__(self) -> None:
        self._memory = _new_memory(0)

    def zeros(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A tensor of zeros; on a GPU it overwrites earlier ones.

        On a CPU it has memory of its own, in which only written pages exist: a wide buffer takes no more than its
        filled part.
        """
        if all(shape) and device.type in UNMARKED:
            return mapped_zeros(shape, dtype, in_huge_pages=False)
        return self._placed(shape, dtype, device).zero_()

    def holding(self, values: Tensor) -> Tensor:
        """A copy of values at the beginning of the memory; it overwrites earlier ones."""
        return self._placed(values.shape, values.dtype, values.device).copy_(values)

    def _placed(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        size, memory = torch.Size(shape).numel(), self._memory
        if len(memory) < size or memory.dtype != dtype or memory.device != device:
            memory = self._memory = _new_memory(0)  # frees the old memory first, unless a view of it is in use
            self._memory = _new_memory(size, dtype=dtype, device=device)
        tensor = self._memory[:size].view(shape)
        if device.type not in UNMARKED:
            # torch._dynamo.mark_static_address, whose import takes seconds
            tensor._dynamo_static_input_type = "unguarded"  # type: ignore[attr-defined]
        return tensor


def _new_memory(size: int, **options: Any) -> Tensor:
    with torch.inference_mode(False):  # a tensor made in inference mode cannot be written outside it
        return torch.empty(size, **options)


class FixedBuffers:
    """Buffers for the tensors of objects that every generation builds anew, one per class and attribute."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[type, str], FixedBuffer] = {}

    def hold(self, *owners: object) -> None:
        """Move the tensors among the attributes of these objects into the buffers.

        Those of an earlier generation lose their values.
        """
        for owner in owners:
            for name, values in vars(owner).items():
                if isinstance(values, Tensor):
                    buffer = self._buffers.setdefault((type(owner), name), FixedBuffer())
                    setattr(owner, name, buffer.holding(values))
