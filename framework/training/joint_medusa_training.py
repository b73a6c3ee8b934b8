"""Joint training of Medusa's heads and a copy of their target, as in blockwise parallel decoding.

B rows, T tokens, H hidden size, V vocabulary.
"""

import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from framework.core.option_error import OptionError
from framework.heads.medusa_heads import save_heads
from framework.models.pretrained import as_target, fingerprint
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes
from framework.training.distillation import save_model
from framework.training.future_tokens import NO_LABEL, check_window, labels_after
from framework.training.medusa_training import MedusaTraining
from framework.training.trainable import is_learned, model_inputs, texts_of


class JointMedusaTraining:
    """Adds the next token's cross-entropy to the loss of `MedusaTraining`, and trains a copy of the target with it.

    The given target stays as it is. The trained copy is a new target, and the heads fit no other (Stern et al., 2018,
    fine-tuned).
    """

    def __init__(
        self, target: Target, *, num_heads: int, output: str, discount: float, ranks: int, path: str | None = None
    ):
        """
        Args:
            target: the model that the copy begins as.
            num_heads, output, discount, ranks, path: as for `MedusaTraining`; path may hold heads of the given target.

        Raises:
            OSError, ValueError: as by `MedusaTraining`; or the target's weights are not float32 on one device.
        """
        _check_trainable(target.model.model)
        self._copy: PreTrainedModel = copy.deepcopy(target.model.model)
        self._target = as_target(self._copy, target.tokenizer)
        self._num_heads = num_heads
        self._heads_training = MedusaTraining(
            self._target, num_heads=num_heads, output=output, discount=discount, ranks=ranks, path=path
        )
        self.module: nn.Module = nn.ModuleList([self._heads_training.heads, self._copy.requires_grad_(True)])

    def trained_target(self) -> Target:
        """The copy as trained so far."""
        return replace(self._target, fingerprint=fingerprint(self._copy))

    def loss(self, tokens: Tensor) -> Tensor:
        """As `MedusaTraining.loss`, with a gradient for the copy as well."""
        check_window(tokens, self._num_heads, "num_heads")
        states, logits = self._states_and_logits(tokens)
        text = texts_of(tokens)[:, 1:]
        labels = text.masked_fill(~is_learned(text), NO_LABEL)
        nats = functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum")
        own = nats / mean_over_processes((labels != NO_LABEL).sum())
        heads = self._heads_training.heads(states[:, :-2])
        return own + self._heads_training.loss_of(heads, labels_after(tokens, self._num_heads))

    def evaluate(self, tokens: Tensor) -> dict[str, float]:
        """Top-1 and top-R accuracy of every head."""
        return self._heads_training.evaluate(tokens)

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the heads, and the copy as a model with its tokenizer, into one folder."""
        save_model(folder, self._copy, self._target.tokenizer)
        accuracies = self._heads_training.accuracies(held_out)
        save_heads(folder, self._heads_training.heads, target=self.trained_target(), accuracies=accuracies)

    def _states_and_logits(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, H] inputs of the copy's output layer, and its logits [B, T, V]."""
        states: list[Tensor] = []
        layer = self._copy.get_output_embeddings()
        hook = layer.register_forward_pre_hook(lambda module, inputs: states.append(inputs[0]))
        try:
            logits = self._copy(**model_inputs(tokens), use_cache=False).logits
        finally:
            hook.remove()
        return states[0], logits[..., : self._target.vocabulary_size]


def _check_trainable(model: PreTrainedModel) -> None:
    """
    Raises:
        ValueError: weights are rounded, sharded, or in another dtype than float32.
    """
    kinds = {weight.dtype for weight in model.parameters()}
    kinds |= {buffer.dtype for buffer in model.buffers() if buffer.dtype == torch.int8}
    if kinds != {torch.float32}:
        given = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        raise OptionError("target.dtype", given, "float32, with target.weights=null, where the target is trained, too")
    if len({weight.device for weight in model.parameters()}) > 1:
        raise OptionError("target.device_map", getattr(model, "hf_device_map", None), "null for joint training")
