"""Small model with its own tokenizer as drafter of any target, by tokens or by text (Timor et al., 2025, 2502.05202).

B rows, V and W tokens in the target's and in the drafter's vocabulary, S in both.
"""

from collections.abc import Callable
from itertools import takewhile

import torch
from torch import Tensor, nn

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import ShouldContinue
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences, put
from framework.core.validation import check_whole
from framework.drafting.chain_builder import ChainBuilder
from framework.drafting.drafter_cache import DrafterCache
from framework.drafting.retokenizer import Retokenizer
from framework.drafting.vocab_mapping import map_vocabularies
from framework.models.pretrained import OtherModel
from framework.models.target import Target
from framework.prompts.detokenizer import Detokenizer

MOST_TOKENS = 1000
TAIL = 16  # last committed tokens that a draft's text is tokenised with


class _OtherTokenizer:
    """A small model that reads the committed text in its own tokens.

    More text may change the last of these tokens. The longest common prefix with the tokens read before, drafts
    included, is not read again. A text longer than the model's context is cut on the left, in steps of a quarter of the
    context.
    """

    shape = Shape.CHAIN
    on_host = True

    def __init__(self, target: Target, *, model: Callable[[Target], OtherModel]):
        """
        Args:
            target: the target; drafts are in its vocabulary.
            model: loads the small model with its tokenizer.

        Raises:
            ValueError: the model is not supported.
        """
        with options_under("model"):
            other = model(target)
        self.model, self._tokenizer = other.model, other.tokenizer
        self._cache = DrafterCache(self.model)
        self.model.refuse_recurrent(
            f"{type(self).__name__} takes tokens back from drafter.model", "a model without them"
        )
        self._target = target

    @property
    def models(self) -> list[nn.Module]:
        return [self.model.model]

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._texts = self._new_texts(sequences)
        self._capacity = 0
        self._catch_up(sequences, gamma=0)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        put(self._texts, rows, self._new_texts(sequences))  # the next draft reads what differs from the earlier texts

    def _new_texts(self, sequences: Sequences) -> list[Retokenizer]:
        return [Retokenizer(self._target.tokenizer, self._tokenizer) for _ in sequences.texts]

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

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


class OtherTokenizer(_OtherTokenizer):
    """Draws a chain of tokens shared by both vocabularies, from the small model's distribution over them (TLI)."""

    scheme = SamplingScheme.IID
    stepwise = True

    def __init__(self, target: Target, *, model: Callable[[Target], OtherModel]):
        """
        Args:
            target: the target; drafts are in its vocabulary.
            model: loads the small model with its tokenizer.

        Raises:
            ValueError: the vocabularies share no token, or the model is not supported.
        """
        super().__init__(target, model=model)
        width, own_width = target.vocabulary_size, self.model.vocabulary_size
        shared = map_vocabularies(target.tokenizer, self._tokenizer, widths=(width, own_width))
        if not shared.numel():
            problem = f"none of whose {own_width} tokens is among the target's {width}"
            allowed = "a model whose tokenizer shares tokens with the target's"
            raise OptionError("model.path", self._tokenizer.name_or_path, allowed, problem)
        self._shared, self._own_shared = shared.to(target.device)
        self._own_of = torch.zeros(width, dtype=torch.int64, device=target.device)
        self._own_of[self._shared] = self._own_shared

    def num_uniforms(self, gamma: int) -> int:
        return gamma

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

    def _of_shared(self, logits: Tensor) -> Tensor:
        """[B, V] logits over the target's vocabulary from logits [B, W]; -inf for tokens that are not shared."""
        shared = logits.new_full((len(logits), self._target.vocabulary_size), -torch.inf)
        shared[:, self._shared] = logits[:, self._own_shared]
        return shared


class StringMatch(_OtherTokenizer):
    """Drafts the text of the small model's likeliest tokens, in the target's tokens (SLEM, string-level exact match).

    The target's tokenizer splits the text after the last committed words. A drafted token is accepted if it is the one
    that the target draws, so every draft is exact, however its tokens came about. Drafts reach tokens that only the
    target has; the price is that they are chosen, not drawn, and accepted with probability p instead of
    min(1, p / q). A draft does not depend on gamma, which only cuts it: a longer text may have other tokens.
    """

    scheme = SamplingScheme.ONE_HOT

    def __init__(self, target: Target, *, model: Callable[[Target], OtherModel], num_tokens: int):
        """
        Args:
            target: the target; drafts are in its vocabulary.
            model: loads the small model with its tokenizer.
            num_tokens: drafted tokens of the small model per round, whatever gamma is.

        Raises:
            ValueError: num_tokens is out of range, or the model is not supported.
        """
        check_whole("num_tokens", num_tokens, least=1, most=MOST_TOKENS)
        super().__init__(target, model=model)
        self._num_tokens = num_tokens

    def num_uniforms(self, gamma: int) -> int:
        return 0

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        own, logits = self._catch_up(sequences, self._num_tokens)
        chosen = [logits.argmax(1)]
        for number in range(self._num_tokens - 1):
            last, visible = chosen[-1].unsqueeze(1), own.longest + number + 1
            chosen.append(self.model.forward(last, own.lengths + number, visible=visible).logits[:, 0].argmax(1))
        rows = []
        for committed, read, drafted in zip(sequences.texts, self._read, torch.stack(chosen, 1).tolist(), strict=True):
            rows.append(self._in_tokens_of_target(committed, read, drafted)[:gamma])
            read += drafted[:-1]
        return Draft.from_lists(rows, sequences.tokens.device)

    def _in_tokens_of_target(self, committed: list[int], read: list[int], drafted: list[int]) -> list[int]:
        """The text of tokens drafted after those read, in the target's tokens after the committed ones."""
        theirs, end = self._target.tokenizer, self._tokenizer.eos_token_id
        ends = end in drafted
        text = Detokenizer(self._tokenizer)
        text.extend(read[-TAIL:])
        added = text.extend(drafted[: drafted.index(end)] if ends else drafted)
        before = Detokenizer(theirs).extend(committed[-TAIL:])
        known, both = (theirs(each, add_special_tokens=False)["input_ids"] for each in (before, before + added))
        if both[: len(known)] != known:  # the last word goes on, in other tokens
            known, both = [], theirs(added, add_special_tokens=False)["input_ids"]
        tokens = both[len(known) :] + ([theirs.eos_token_id] if ends and theirs.eos_token_id is not None else [])
        return list(takewhile(lambda token: token < self._target.vocabulary_size, tokens))


def _in_common(tokens: list[int], others: list[int]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(tokens), len(others))
    if tokens[:shorter] == others[:shorter]:
        return shorter
    return next(place for place in range(shorter) if tokens[place] != others[place])
