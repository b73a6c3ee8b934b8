"""Hidden states of the target for training: computed, or read from a folder of `stored_states`.

B rows, T tokens, H hidden, n layers.
"""

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from framework.models.forward_output import LayerHooks
from framework.models.target import Target
from framework.training.stored_states import StoredStates
from framework.training.trainable import Trainable, model_inputs


class TargetStates:
    """A frozen target's states at the tokens of windows or pairs."""

    def __init__(self, target: Target, layers: Sequence[int] = ()):
        """
        Args:
            target: the target.
            layers: further layers to read, by the indices of `LayerHooks`.
        """
        self.layers = tuple(layers)
        self._model, self._hooks = target.model.model, LayerHooks(target.model.model)
        self._stored: StoredStates | None = None

    def read_from(self, stored: StoredStates) -> None:
        """Read the states of stored windows in place of computing them; other windows are still computed."""
        self._stored = stored

    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """As `states_and_features`, for tokens [B, T] or [B, 2, T] int64."""
        if self._stored is not None and (found := self._stored.at(tokens, self.layers)) is not None:
            like = self._model.get_output_embeddings().weight
            return found[0].to(like), None if found[1] is None else found[1].to(like)
        return states_and_features(self._hooks, self._model, tokens, self.layers)


class ReadsStates(Trainable, Protocol):
    """Optional: a Trainable whose only access to the target's passes over windows are its states."""

    states: TargetStates


def reads_states(trainable: Trainable) -> TypeGuard[ReadsStates]:
    """Whether a trainable may read stored states."""
    return hasattr(trainable, "states")


def output_layer_input(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """[B, T, H] input of a model's output layer in an uncached pass over tokens [B, T] or [B, 2, T] int64."""
    seen: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(inputs[0])
        return (inputs[0][:, :1],)  # the logits are not needed, so score one position only

    hook = model.get_output_embeddings().register_forward_pre_hook(look)
    try:
        with torch.no_grad():
            model(**model_inputs(tokens), use_cache=False)
    finally:
        hook.remove()
    return seen[0]


def states_and_features(
    hooks: LayerHooks, model: PreTrainedModel, tokens: Tensor, layers: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """As `output_layer_input`, and [B, T, n * H] states of n layers by the indices of `LayerHooks`; None: no layers."""
    with hooks.capturing(layers):
        states = output_layer_input(model, tokens)
    return states, hooks.take(layers) if layers else None
