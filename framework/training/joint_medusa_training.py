"""Joint training of Medusa's heads and a copy of their target, as in blockwise parallel decoding.

B rows, T tokens.
"""

from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from framework.models.pretrained import as_target, fingerprint
from framework.models.target import Target
from framework.training.batch_shares import mean_over_processes
from framework.training.future_tokens import NO_LABEL, check_window, labels_after
from framework.training.medusa_training import MedusaTraining
from framework.training.target_states import output_layer_input
from framework.training.trainable import is_learned, texts_of


class JointMedusaTraining(MedusaTraining):
    """Adds the next token's cross-entropy to the loss of `MedusaTraining`, and trains a copy of the target with it.

    The given target stays as it is. The copy has another distribution: it is a target of its own, whose heads draft for
    no other (Stern et al., 2018, fine-tuned).
    """

    def __init__(
        self, target: Target, *, num_heads: int, output: str, discount: float, ranks: int, path: str | None = None
    ):
        """
        Args:
            target: the model that the copy begins as.
            num_heads, output, discount, ranks, path: as for `MedusaTraining`; path may hold heads of the given target.

        Raises:
            OSError, ValueError: as by `MedusaTraining`.
        """
        original = target.model.model
        self._copy = type(original)(original.config).to(original.device, original.dtype)
        self._copy.load_state_dict(original.state_dict())
        self._copy.generation_config = original.generation_config
        own = as_target(self._copy, target.tokenizer)
        super().__init__(own, num_heads=num_heads, output=output, discount=discount, ranks=ranks, path=path)
        self.module = nn.ModuleList([self.heads, self._copy.requires_grad_(True)])

    @property
    def target(self) -> Target:
        """The copy as trained so far."""
        return replace(self._target, fingerprint=fingerprint(self._copy))

    def loss(self, tokens: Tensor) -> Tensor:
        """As `MedusaTraining.loss`, with a gradient for the copy as well."""
        check_window(tokens, self._num_heads, "num_heads")
        states, text = output_layer_input(self._copy, tokens, with_gradient=True), texts_of(tokens)[:, 1:]
        logits = self._copy.get_output_embeddings()(states[:, :-1]).float()
        labels = text.masked_fill(~is_learned(text), NO_LABEL)
        nats = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        own = nats / mean_over_processes((labels != NO_LABEL).sum())
        return own + self._loss(self.heads(states[:, :-2]).float(), labels_after(tokens, self._num_heads))

    def save(self, folder: Path, held_out: Tensor) -> None:
        """Write the heads, and the copy as a model with its tokenizer, into one folder."""
        self._copy.save_pretrained(folder)
        self._target.tokenizer.save_pretrained(folder)
        self._target = self.target
        super().save(folder, held_out)
