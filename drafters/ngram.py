"""An n-gram language model as drafter: counted, not trained.

B rows, L context lengths (0 ... order - 1), T committed tokens of the longest row, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from framework.draft import Draft, Law, Outcome, Shape
from framework.growing_chain import GrowingChain
from framework.ngram_tables import NGramTables, tokenised_documents
from framework.prompts.prompt_source import PromptSource
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.target import Target

SMOOTHINGS = ("longest_context", "laplace", "witten_bell")
LARGEST_ORDER = 100  # every shorter context is counted, too


class NGram:
    """Drafts from the counts of what followed the last order - 1 tokens, in a corpus and in the row's own text.

    Counts are those of nltk's NgramCounter without padding, and the law equals nltk's score at the order used:
    `longest_context` is maximum likelihood at the longest context that was ever continued, `laplace` adds one to
    every count after the full context (nltk.lm.Laplace), `witten_bell` mixes all context lengths
    (nltk.lm.WittenBellInterpolated; Witten and Bell, 1991). Where nothing is known the law is uniform. Temperature,
    top-k, top-p and min-p apply to it as they do to the target's law.

    Nothing is kept between rounds: a row's own text is counted anew by comparing all of it with the context at
    once, so there is nothing to roll back or to forget.
    """

    law = Law.IID
    shape = Shape.CHAIN
    keep_drafting: Callable[[Tensor], Tensor] | None = None

    def __init__(
        self, target: Target, *, order: int, smoothing: str, learn_from_context: bool, corpus: PromptSource | None
    ):
        """
        Args:
            target: gives the tokenizer, the vocabulary and the device.
            order: n; the law depends on the last n - 1 tokens.
            smoothing: longest_context, laplace or witten_bell.
            learn_from_context: also count each row's committed tokens, as one further document of that row alone.
            corpus: the texts to count; None counts committed tokens only.

        Raises:
            ValueError: a setting outside its range, or nothing to count; the message names the yaml key.
        """
        if not isinstance(order, int) or isinstance(order, bool) or not 1 <= order <= LARGEST_ORDER:
            raise ValueError(f"drafter.order is {order!r}; allowed: a whole number from 1 to {LARGEST_ORDER}")
        if smoothing not in SMOOTHINGS:
            raise ValueError(f"drafter.smoothing is {smoothing!r}; allowed: {', '.join(SMOOTHINGS)}")
        if corpus is None and not learn_from_context:
            raise ValueError(
                "drafter.learn_from_context is false and drafter.corpus is null: nothing would be counted. "
                "Set drafter.learn_from_context=true or give a drafter.corpus"
            )
        self.smoothing = smoothing
        self.learn_from_context = learn_from_context
        self.tables = NGramTables(
            [] if corpus is None else tokenised_documents(corpus, target),
            order=order,
            vocabulary_size=target.vocabulary_size,
            device=target.device,
        )

    def num_uniforms(self, gamma: int) -> int:
        """One per drafted token."""
        return gamma

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft a chain of at most gamma tokens; at temperature 0 the likeliest ones."""
        chain = GrowingChain(
            gamma=gamma,
            active=sequences.active,
            sampling=self._sampling,
            uniforms=uniforms,
            keep_drafting=self.keep_drafting,
        )
        contexts = _Contexts(self.tables, sequences, self.learn_from_context)
        while chain.add_law(self._smooth(contexts.counts(), sequences.lengths + chain.num_nodes)):
            contexts.read(chain.last)
        return chain.draft()

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        pass

    def _smooth(self, counts: Tensor, lengths: Tensor) -> Tensor:
        """The law of the next token: [B, V] float32 from counts [B, L, V] after texts of lengths [B]."""
        if self.smoothing == "laplace":
            full_context = lengths.clamp(max=self.tables.order - 1)
            counts = counts[torch.arange(len(counts), device=counts.device), full_context].unsqueeze(1)
        seen = counts.sum(2)
        # Every smoothing adds so many imaginary counts to a context, shared out by the law of the next shorter one.
        if self.smoothing == "laplace":
            imaginary = torch.full_like(seen, counts.shape[2])
        else:
            imaginary = (seen == 0).float()
            if self.smoothing == "witten_bell":
                imaginary[:, 1:] += (counts[:, 1:] > 0).sum(2)
        total = (seen + imaginary).unsqueeze(2).unbind(1)
        law = counts.new_full((1, counts.shape[2]), 1 / counts.shape[2])
        for level, share in enumerate(imaginary.unsqueeze(2).unbind(1)):
            law = torch.addcmul(counts[:, level], share, law) / total[level]
        return law


class _Contexts:
    """The last 0 ... order - 1 tokens of every row, and how often each token followed them."""

    def __init__(self, tables: NGramTables, sequences: Sequences, learn_from_context: bool):
        """
        Args:
            tables: counts of the corpus.
            sequences: their last tokens are the contexts.
            learn_from_context: whether the rows' committed tokens are counted too.
        """
        device, nothing = sequences.tokens.device, tables.vocabulary_size
        self._tables = tables
        self._nodes = tables.start(sequences.num_rows)
        self._text: Tensor | None = None
        if learn_from_context:
            text = sequences.tokens[:, : sequences.longest]
            committed = torch.arange(text.shape[1], device=device) < sequences.lengths.unsqueeze(1)
            self._text = text.where(committed, nothing).unsqueeze(1)
            # [B, L, T] bool: whether the l tokens before a place are the last l tokens read. No token is, everywhere.
            self._matches = torch.zeros(len(text), tables.order, text.shape[1], dtype=torch.bool, device=device)
            self._matches[:, 0] = True
        positions = sequences.lengths.unsqueeze(1) - torch.arange(tables.order - 1, 0, -1, device=device)
        recent = sequences.tokens.gather(1, positions.clamp(min=0)).where(positions >= 0, nothing)
        for token in recent.unbind(1):
            self.read(token)

    def read(self, tokens: Tensor) -> None:
        """Move on by one token a row; tokens [B] int64."""
        self._nodes = self._tables.follow(self._nodes, tokens)
        if self._text is not None:
            same = self._text[:, :, :-1] == tokens[:, None, None]
            longer = functional.pad(self._matches[:, :-1, :-1] & same, (1, 0))
            self._matches = torch.cat([self._matches[:, :1], longer], 1)

    def counts(self) -> Tensor:
        """[B, L, V] float32."""
        counts = self._tables.counts(self._nodes)
        if self._text is not None:
            counts.scatter_add_(2, self._text.expand_as(self._matches), self._matches.float())
        return counts[..., :-1]
