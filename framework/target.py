"""Target: what a drafter may use of the model it drafts for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.sequences import Conditioned, Prompt, text_of

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

    def as_prompt(self, prompt: Prompt) -> Prompt:
        """What this model is given: token ids alone are a source, if it has an encoder to read it.

        Raises:
            ValueError: a source for a model without an encoder.
        """
        if isinstance(prompt, Conditioned):
            if not self.model.text_start:
                raise ValueError("a prompt has a source, but the target is decoder-only; give token ids alone")
            return prompt
        return Conditioned(prompt, self.model.text_start) if self.model.text_start else prompt

    def uncached(self, prompt: Prompt) -> Tensor:
        """[T, V] logits after every token of a prompt's text, by one pass without a cache."""
        prompt = self.as_prompt(prompt)
        tokens = torch.tensor([text_of(prompt)], device=self.device)
        return self.model.uncached(tokens, prompt.source if isinstance(prompt, Conditioned) else None)[0]

    @property
    def device(self) -> torch.device:
        return self.model.device
