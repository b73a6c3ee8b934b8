"""A small model with a tokenizer of its own drafts for any target (Timor et al., 2025, 2502.05202).

B rows, V and W tokens in the target's and in the drafter's vocabulary, S in both.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from framework.draft import Draft, DraftedNode, Law, Outcome, Shape
from framework.growing_chain import GrowingChain
from framework.pretrained import OtherModel
from framework.rewritten_text import RewrittenText
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.shared_tokens import shared_tokens
from framework.target import Target


class OtherTokenizer:
    """Draws a chain of tokens that both vocabularies have, from the small model's law of those (TLI).

    The model reads the committed text as its own tokenizer writes it. More text may change the last of those tokens;
    whatever they have in common with what was read before, drafts included, is not read again. A text that is longer
    than the model's context is cut on the left, a quarter of the context at a time.
    """

    law = Law.IID
    shape = Shape.CHAIN
    on_host = True
    keep_drafting: Callable[[DraftedNode], Tensor] | None = None

    def __init__(self, target: Target, *, model: Callable[[Target], OtherModel]):
        """
        Args:
            target: whose tokens are drafted.
            model: loads the small model with its tokenizer.

        Raises:
            ValueError: no token is shared, or the model cannot be served.
        """
        other = model(target)
        self.model, self._tokenizer = other.model, other.tokenizer
        self._target = target
        width, own_width = target.vocabulary_size, self.model.vocabulary_size
        shared = shared_tokens(target.tokenizer, self._tokenizer, widths=(width, own_width))
        if not shared.numel():
            raise ValueError(
                f"drafter.model.path names a model none of whose {own_width} tokens is among the target's {width}; "
                "allowed: one whose tokenizer shares some with it"
            )
        self._shared, self._own_shared = shared.to(target.device)
        self._own_of = torch.zeros(width, dtype=torch.int64, device=target.device)
        self._own_of[self._shared] = self._own_shared

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._texts = [RewrittenText(self._target.tokenizer, self._tokenizer) for _ in sequences.texts]
        self._capacity = 0
        self._catch_up(sequences, gamma=0)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms.to(sequences.tokens.device),
            keep_drafting=self.keep_drafting,
        )
        own, logits = self._catch_up(sequences, gamma)
        while chain.add(self._of_shared(logits)):
            read = chain.num_nodes
            tokens = self._own_of[chain.last].unsqueeze(1)
            logits = self.model.forward(tokens, own.lengths + (read - 1), visible=own.longest + read)[:, 0]
        draft = chain.draft()
        for text, drafted in zip(self._read, self._own_of[draft.tokens[:, :-1]].tolist(), strict=True):
            text += drafted
        return draft

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def _of_shared(self, logits: Tensor) -> Tensor:
        """[B, V] from the model's logits [B, W]: -inf for tokens that are not shared."""
        shared = logits.new_full((len(logits), self._target.vocabulary_size), -torch.inf)
        shared[:, self._shared] = logits[:, self._own_shared]
        return shared

    def _catch_up(self, sequences: Sequences, gamma: int) -> tuple[Sequences, Tensor]:
        """Read what is committed, as far as it is not read yet.

        Returns:
            what is committed in the model's own tokens, and [B, W] logits of what follows.
        """
        texts = [
            self._that_fits(text.read(committed)) for text, committed in zip(self._texts, sequences.texts, strict=True)
        ]
        needed = max(map(len, texts)) + gamma + 1
        if needed > self._capacity:
            # At once for what the rows may become, if the tokenizers do not differ too much.
            likely = min(self.model.context, 2 * sequences.tokens.shape[1])
            self._capacity = max(1 << needed.bit_length(), likely)
            self.model.begin(len(texts), self._capacity)
            self._read: list[list[int]] = [[] for _ in texts]
        own = Sequences.from_prompts(texts, width=self._capacity, device=sequences.tokens.device)
        known = list(map(_in_common, texts, self._read))
        self.model.cached = torch.tensor(known, device=sequences.tokens.device)
        self._read = texts
        return own, self.model.catch_up(own)

    def _that_fits(self, tokens: list[int]) -> list[int]:
        """The end of a text, in steps, so that it does not move with every token; a quarter is left to drafts."""
        step = max(1, self.model.context // 4)
        too_many = len(tokens) - 3 * step
        return tokens[-(-max(0, too_many) // step) * step :]


def _in_common(tokens: list[int], others: list[int]) -> int:
    """How many first tokens are the same."""
    shorter = min(len(tokens), len(others))
    if tokens[:shorter] == others[:shorter]:
        return shorter
    return next(place for place in range(shorter) if tokens[place] != others[place])
