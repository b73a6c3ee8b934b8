"""Target: what a drafter may use of the model it drafts for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedTokenizerBase

if TYPE_CHECKING:
    from framework.cached_lm import CachedLM


@dataclass(frozen=True)
class Target:
    """The target model with its tokenizer.

    Attributes:
        model: the model with its cache; drafters that borrow from it leave it as found.
        tokenizer: decides which ids exist.
        vocabulary_size: V, the width of every law; padding rows of the model's output layer are not part of it.
        fingerprint: names the weights; trained drafters record whom they were trained for.
    """

    model: "CachedLM"
    tokenizer: PreTrainedTokenizerBase
    vocabulary_size: int
    fingerprint: str

    @property
    def device(self) -> torch.device:
        return self.model.device
