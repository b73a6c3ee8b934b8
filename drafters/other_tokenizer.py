"""Small model with its own tokenizer as drafter of any target (Timor et al., 2025, 2502.05202).

B rows, V and W tokens in the target's and in the drafter's vocabulary, S in both.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences, put
from framework.drafting.chain_builder import ChainBuilder
from framework.drafting.drafter_cache import DrafterCache
from framework.drafting.retokenizer import Retokenizer
from framework.drafting.vocab_mapping import map_vocabularies
from framework.models.pretrained import OtherModel
from framework.models.target import Target


class OtherTokenizer:
    """Draws a chain of tokens shared by both vocabularies, from the small model's distribution over them (TLI).

    The model reads the committed text in its own tokens. More text may change the last of these tokens. The longest
    common prefix with the tokens read before, drafts included, is not read again. A text longer than the model's
    context is cut on the left, in steps of a quarter of the context.
    """

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN
    on_host = True
    stepwise = True

    def __init__(self, target: Target, *, model: Callable[[Target], OtherModel]):
        """
        Args:
            target: the target; drafts are in its vocabulary.
            model: loads the small model with its tokenizer.

        Raises:
            ValueError: the vocabularies share no token, or the model is not supported.
        """
        with options_under("model"):
            other = model(target)
        self.model, self._tokenizer = other.model, other.tokenizer
        self._cache = DrafterCache(self.model)
        self.model.refuse_recurrent("other_tokenizer takes tokens back from drafter.model", "a model without them")
        self._target = target
        width, own_width = target.vocabulary_size, self.model.vocabulary_size
        shared = map_vocabularies(target.tokenizer, self._tokenizer, widths=(width, own_width))
        if not shared.numel():
            problem = f"none of whose {own_width} tokens is among the target's {width}"
            allowed = "a model whose tokenizer shares tokens with the target's"
            raise OptionError("model.path", self._tokenizer.name_or_path, allowed, problem)
        self._shared, self._own_shared = shared.to(target.device)
        self._own_of = torch.zeros(width, dtype=torch.int64, device=target.device)
        self._own_of[self._shared] = self._own_shared

    @property
    def models(self) -> list[nn.Module]:
        return [self.model.model]

    def num_uniforms(self, gamma: int) -> int:
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._texts = self._new_texts(sequences)
        self._capacity = 0
        self._catch_up(sequences, gamma=0)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._texts, rows, self._new_texts(sequences))  # the next draft reads what differs from the earlier texts

    def _new_texts(self, sequences: Sequences) -> list[Retokenizer]:
        return [Retokenizer(self._target.tokenizer, self._tokenizer) for _ in sequences.texts]

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: Tensor, should_continue: ShouldContinue | None = None
    ) -> Draft:
        chain = ChainBuilder(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms.to(sequences.tokens.device),
            should_continue=should_continue,
        )
        own, logits = self._catch_up(sequences, gamma)
        while chain.add(self._of_shared(logits)):
            read = chain.num_nodes
            tokens = self._own_of[chain.last].unsqueeze(1)
            logits = self.model.forward(tokens, own.lengths + (read - 1), visible=own.longest + read).logits[:, 0]
        draft = chain.draft()
        for text, drafted in zip(self._read, self._own_of[draft.tokens[:, :-1]].tolist(), strict=True):
            text += drafted
        return draft

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def _of_shared(self, logits: Tensor) -> Tensor:
        """[B, V] logits over the target's vocabulary from logits [B, W]; -inf for tokens that are not shared."""
        shared = logits.new_full((len(logits), self._target.vocabulary_size), -torch.inf)
        shared[:, self._shared] = logits[:, self._own_shared]
        return shared

    def _catch_up(self, sequences: Sequences, gamma: int) -> tuple[Sequences, Tensor]:
        """Read all committed text that is not cached yet.

        Returns:
            the committed text in the model's own tokens, and [B, W] logits of the next token.
        """
        texts = [
            self._that_fits(text.read(committed)) for text, committed in zip(self._texts, sequences.texts, strict=True)
        ]
        needed = max(map(len, texts)) + gamma + 1
        if needed > self._capacity:
            # Room for the whole generation, unless the model's tokens are less than half as long as the target's.
            likely = min(self.model.context, 2 * sequences.tokens.shape[1])
            self._capacity = max(1 << needed.bit_length(), likely)
            self._cache.begin(len(texts), self._capacity)
            self._read: list[list[int]] = [[] for _ in texts]
        own = Sequences.from_prompts(texts, width=self._capacity, device=sequences.tokens.device)
        known = list(map(_in_common, texts, self._read))
        self._cache.cached = torch.tensor(known, device=sequences.tokens.device)
        self._read = texts
        return own, self._cache.catch_up(own)

    def _that_fits(self, tokens: list[int]) -> list[int]:
        """The end of a text, cut in steps so that it rarely shifts; a quarter of the context is left for drafts."""
        step = max(1, self.model.context // 4)
        too_many = len(tokens) - 3 * step
        return tokens[-(-max(0, too_many) // step) * step :]


def _in_common(tokens: list[int], others: list[int]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(tokens), len(others))
    if tokens[:shorter] == others[:shorter]:
        return shorter
    return next(place for place in range(shorter) if tokens[place] != others[place])
