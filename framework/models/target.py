"""Target: the interface of the target model for drafters."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from framework.core.logits_processors import LogitsProcessors, Texts
from framework.core.sequences import Conditioned, Prompt, text_of

if TYPE_CHECKING:
    from framework.models.cached_lm import CachedLM


@dataclass(frozen=True)
class Target:
    """The target model with its tokenizer and logits processors.

    Attributes:
        model: the model with its cache; drafters that borrow parts of it must not change it.
        tokenizer: defines the valid token ids.
        vocabulary_size: V, the width of every distribution, without padding rows of the model's output layer.
        fingerprint: hash of the weights; trained drafters record the fingerprint of their target.
        processors: options of its generation_config that change p; the logits of `model` and `uncached` are raw.
    """

    model: "CachedLM"
    tokenizer: PreTrainedTokenizerBase
    vocabulary_size: int
    fingerprint: str
    processors: LogitsProcessors = field(default_factory=LogitsProcessors)

    def as_prompt(self, prompt: Prompt) -> Prompt:
        """Prompt in the form of this model; an encoder-decoder model takes bare token ids as the source.

        Raises:
            ValueError: the prompt has a source, and the model has no encoder.
        """
        if isinstance(prompt, Conditioned):
            if not self.model.text_start:
                raise ValueError("a prompt has a source, but the target is decoder-only; give token ids alone")
            return prompt
        return Conditioned(prompt, self.model.text_start) if self.model.text_start else prompt

    def uncached(self, prompt: Prompt) -> Tensor:
        """[T, V] raw logits after every token of a prompt's text, from one pass without a cache."""
        prompt = self.as_prompt(prompt)
        tokens = torch.tensor([text_of(prompt)], device=self.device)
        return self.model.uncached(tokens, prompt.source if isinstance(prompt, Conditioned) else None)[0]

    def next_logits(self, prompt: Prompt, new: Tensor, *, eos_ids: tuple[int, ...] = (), max_new_tokens: int) -> Tensor:
        """Processed logits after each of several continuations of one prompt, from one pass without a cache.

        Args:
            prompt: as in a decoding loop.
            new: [B, N] int64 tokens after the prompt.
            eos_ids: EOS tokens of the decoding, for the processors.
            max_new_tokens: token budget of the decoding, for the processors.

        Returns:
            [B, V] logits, which `Sampling.probs` turns into p.
        """
        prompt = self.as_prompt(prompt)
        source = prompt.source if isinstance(prompt, Conditioned) else None
        texts = Texts.of_continuations(prompt, new, eos_ids=eos_ids, max_new_tokens=max_new_tokens)
        logits = self.model.uncached(texts.tokens[:, 0], source)[:, -1:]
        return self.processors(logits, texts)[:, 0]

    @property
    def device(self) -> torch.device:
        return self.model.device
