"""Output of one forward pass, and the hook that captures its hidden states.

B rows, M tokens read, V vocabulary, H hidden.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class ForwardOutput:
    """Logits of a pass, and the hidden states behind them.

    Attributes:
        logits: [B, M, V], or [B, 1, V] with keep; logits[:, j] score the token after tokens[:, j].
        hidden_states: [B, M, H] input of the output layer, for all tokens of the pass.
        keep: [B] int64 index of the one token per row with logits; None: all tokens have logits.
    """

    logits: Tensor
    hidden_states: Tensor
    keep: Tensor | None = None

    @property
    def scored_states(self) -> Tensor:
        """[B, M, H], or [B, 1, H] with keep: hidden states of the tokens with logits."""
        return self.hidden_states if self.keep is None else rows_of(self.hidden_states, self.keep)


def rows_of(tensor: Tensor, index: Tensor) -> Tensor:
    """[B, 1, ...]: entry index[b] of each row of tensor [B, M, ...]; index is [B] int64."""
    return tensor[torch.arange(len(index), device=index.device), index].unsqueeze(1)


class OutputLayerHook:
    """Forward pre-hook that captures the input of a model's output layer; removed when this object is deleted."""

    def __init__(self, model: PreTrainedModel):
        captured: list[Tensor] = []
        wanted: list[Tensor | None] = [None]

        def keep(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            captured.clear()
            captured.append(inputs[0])
            index = wanted[0]
            return inputs if index is None else (rows_of(inputs[0], index.to(inputs[0].device)), *inputs[1:])

        self._captured, self._wanted = captured, wanted
        weakref.finalize(self, model.get_output_embeddings().register_forward_pre_hook(keep).remove)

    @contextmanager
    def letting_through(self, index: Tensor | None) -> Iterator[None]:
        """Restrict the output layer, in the block, to one token per row, [B] int64; None: all tokens."""
        self._wanted[0] = index
        try:
            yield
        finally:
            self._wanted[0] = None

    def take(self) -> Tensor:
        """[B, M, H]: input of the output layer in the latest pass, all tokens; no reference to it is kept."""
        return self._captured.pop()
