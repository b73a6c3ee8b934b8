"""Output of one forward pass, and the hooks that capture its hidden states.

B rows, M tokens read, V vocabulary, H hidden, n captured layers.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from framework.models.encoder_decoder import find_blocks, num_decoder_layers


@dataclass(frozen=True)
class ForwardOutput:
    """Logits of a pass, and the hidden states behind them.

    Attributes:
        logits: [B, M, V], or [B, 1, V] with keep; logits[:, j] score the token after tokens[:, j].
        hidden_states: [B, M, H] input of the output layer, for all tokens of the pass.
        features: [B, M, n * H] states of the captured layers, in order, for all tokens; None: none was to be captured.
        keep: [B] int64 index of the one token per row with logits; None: all tokens have logits.
    """

    logits: Tensor
    hidden_states: Tensor
    features: Tensor | None = None
    keep: Tensor | None = field(default=None, kw_only=True)

    @classmethod
    def stacked(cls, outputs: Sequence["ForwardOutput"]) -> "ForwardOutput":
        """One pass made of passes over different rows, each with keep; states beyond a pass's tokens are zeros."""
        logits, keep = (torch.cat([getattr(each, name) for each in outputs]) for name in ("logits", "keep"))
        states = [_stacked(same) for same in zip(*(each.by_token for each in outputs), strict=True)]
        return cls(logits, *states, keep=keep)

    @property
    def by_token(self) -> tuple[Tensor, ...]:
        """[B, M, ...] each: hidden states, and features if there are any."""
        return (self.hidden_states,) if self.features is None else (self.hidden_states, self.features)

    @property
    def scored_states(self) -> Tensor:
        """[B, M, H], or [B, 1, H] with keep: hidden states of the tokens with logits."""
        return self.hidden_states if self.keep is None else rows_of(self.hidden_states, self.keep)


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """[B, longest M, ...]: the rows of tensors [R, M, ...] with different M."""
    return pad_sequence([row for tensor in tensors for row in tensor], batch_first=True)


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


class LayerHooks:
    """Forward hooks that capture the states between a decoder's layers; removed when this object is deleted.

    State i is entry i of transformers' `hidden_states`: 0 is the input of the first layer, i the output of layer i, and
    the last one lacks the final norm that transformers applies. In an encoder-decoder model they are the decoder's.
    """

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._hooked: set[int] = set()
        self._wanted: list[frozenset[int]] = [frozenset()]
        self._captured: dict[int, Tensor] = {}
        self.num_layers = num_decoder_layers(model)

    @contextmanager
    def capturing(self, layers: Sequence[int]) -> Iterator[None]:
        """Capture the states of these layers in the pass of the block.

        The first pass that captures a layer must not be a compiled one.
        """
        for layer in layers:
            if layer not in self._hooked:
                self._hook(layer)
        self._wanted[0] = frozenset(layers)
        try:
            yield
        finally:
            self._wanted[0] = frozenset()

    def take(self, layers: Sequence[int]) -> Tensor:
        """[B, M, n * H]: the captured states of these layers, in order; no reference to them is kept."""
        states = [self._captured[layer] for layer in layers]
        self._captured.clear()
        return torch.cat([state.to(states[-1].device) for state in states], -1)

    def _hook(self, layer: int) -> None:
        found = find_blocks(self._model)
        if found is None:
            raise ValueError(
                f"{type(self._model).__name__} has no list of {self.num_layers} layers whose states could be captured; "
                "choose a drafter= without hidden_layers"
            )
        blocks, captured, wanted = found[1], self._captured, self._wanted

        def before(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            if layer in wanted[0]:
                captured[layer] = inputs[0] if inputs else named["hidden_states"]

        def after(module: nn.Module, inputs: tuple[Any, ...], returned: Any) -> None:
            if layer in wanted[0]:
                captured[layer] = returned[0] if isinstance(returned, tuple) else returned

        if layer:
            handle = blocks[layer - 1].register_forward_hook(after)
        else:
            handle = blocks[0].register_forward_pre_hook(before, with_kwargs=True)
        self._hooked.add(layer)
        weakref.finalize(self, handle.remove)
