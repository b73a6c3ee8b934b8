"""A speculative loop drafts for the target: a smaller drafter for a middle model, and that one for the target.

B rows, N nodes, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from framework.cached_lm import CachedLM
from framework.device_round import DeviceRound, Rows
from framework.draft import Draft, Law, Outcome, Shape
from framework.drafter import Rewindable, keys_as, most_nodes
from framework.pretrained import fingerprint
from framework.sampling import Sampling
from framework.sequences import Sequences
from framework.stopping import Finisher, Stopping
from framework.tally import Tally
from framework.target import Target
from framework.verifiers.standard import standard_rule
from framework.whole_numbers import check_whole

MOST_GAMMA = 1000


class Hierarchical:
    """Drafts what a middle model would, found by rounds of a drafter of its own (Globerson et al., 2025, 2510.19705).

    The inner rounds are exact, so their tokens are draws from the middle model's law: that law is q, whoever proposed a
    token, and whether it was accepted, a replacement or a bonus. Drafts are always gamma deep, and never hold the
    inner rounds' last token, which the middle model has not read.

    Attributes:
        inner_tally: of the inner rounds, since `begin`.
    """

    law = Law.IID
    shape = Shape.CHAIN
    on_host = True  # how many inner rounds there are, the host learns from round to round

    def __init__(
        self,
        target: Target,
        *,
        model: Callable[[Target], CachedLM],
        drafter: Callable[..., Rewindable],
        gamma: int,
    ):
        """
        Args:
            target: whose vocabulary and tokenizer the models must share.
            model: builds the middle model for that target.
            drafter: builds what drafts for the middle model, which it is given as its target.
            gamma: how deep the inner drafts are, 1 to MOST_GAMMA.

        Raises:
            ValueError: gamma is out of range, the inner drafter cannot take tokens back, or a model cannot be served.
        """
        check_whole("drafter.gamma", gamma, least=1, most=MOST_GAMMA)
        self.model = model(target)
        middle = Target(self.model, target.tokenizer, target.vocabulary_size, fingerprint(self.model.model))
        with keys_as("drafter.drafter"):
            inner = drafter(target=middle)
        if not hasattr(inner, "rewind"):
            raise ValueError(
                f"drafter.drafter is a {type(inner).__name__}, which cannot take tokens back that the target rejects; "
                "allowed: drafters with `rewind`, such as SmallTransformer, TransformerTree or Hierarchical"
            )
        self.drafter = inner
        self._gamma = gamma
        self._rule = standard_rule(inner.law, inner.shape)
        self._middle = middle
        self._room = most_nodes(inner, gamma) + 2

    @property
    def _uniforms_a_round(self) -> int:
        return 2 + self.drafter.num_uniforms(self._gamma)

    def num_uniforms(self, gamma: int) -> int:
        """For as many inner rounds as there may be: one more than gamma tokens are wanted, and each brings one."""
        return (gamma + 1) * self._uniforms_a_round

    def begin(self, sequences: Sequences, prefill: Outcome, sampling: Sampling) -> None:
        self._sampling = sampling
        self._round = DeviceRound(target=self._middle, drafter=self.drafter, verifier=self._rule, sampling=sampling)
        self.inner_tally = Tally(
            self._gamma,
            most_nodes(self.drafter, self._gamma),
            shape=self.drafter.shape,
            token_rule=self._rule.token_rule,
        )
        sequences = self._ahead(sequences)
        self.model.begin_with(sequences)
        self.drafter.begin(sequences, prefill, sampling)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Exactly gamma tokens deep: the inner rounds do not depend on how many of them are wanted."""
        ahead = self._ahead(sequences)
        stopping = Stopping(max_new_tokens=gamma + 1)
        rows = Rows(ahead, Finisher(ahead, stopping, context=ahead.tokens.shape[1]))
        q = _Laws(sequences.lengths, gamma)
        for its in uniforms.to(sequences.tokens.device).split(self._uniforms_a_round, dim=1):
            if not rows.finisher.most_remaining:
                break
            before = ahead.lengths
            # No deeper than what can be kept: the beginning of a deeper draft. Never empty: so little is left to read.
            depth = max(1, min(self._gamma, rows.finisher.most_remaining - 1))
            draft = self.drafter.propose(ahead, depth, its[:, 2 : 2 + self.drafter.num_uniforms(depth)])
            outcome, told = self._round.judge(rows, draft, its)
            self.inner_tally.observe(self._round.read(rows, told))
            if not self._sampling.greedy:
                q.take(outcome, before)
        places = sequences.lengths.unsqueeze(1) + torch.arange(gamma, device=sequences.lengths.device)
        tokens = ahead.tokens.gather(1, places)
        if self._sampling.greedy:
            return Draft.chain(tokens, Law.ONE_HOT)
        return Draft.chain(tokens, Law.IID, probs=q.of_draft())

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        if outcome.draft.num_nodes:
            self.drafter.rewind(sequences)
        else:  # nobody has drafted, so that the models have not read what was pending
            self.drafter.observe(sequences, outcome)
            self.model.catch_up(sequences)
        self.model.rewind(sequences)

    def rewind(self, sequences: Sequences) -> None:
        self.drafter.rewind(sequences)
        self.model.rewind(sequences)

    def _ahead(self, sequences: Sequences) -> Sequences:
        """A copy that the inner rounds may write ahead of the target, with room for their drafts."""
        texts = [list(text) for text in sequences.texts]
        return replace(sequences, tokens=pad(sequences.tokens, (0, self._room)), texts=texts)


class _Laws:
    """The middle model's laws that the drafted tokens were drawn from, gathered from inner rounds."""

    def __init__(self, first: Tensor, gamma: int):
        """
        Args:
            first: [B] int64: where the drafted tokens begin.
            gamma: how many there are.
        """
        self._first, self._gamma = first, gamma
        self._laws: Tensor | None = None  # [B, gamma + 1, V]; the last is for whatever is not in the draft

    def take(self, outcome: Outcome, before: Tensor) -> None:
        """Note a round's laws, whose tokens were committed at `before` [B] int64 and behind it."""
        rows = outcome.followed
        index = torch.arange(rows.shape[1], device=rows.device)
        place = (before - self._first).unsqueeze(1) + index
        place = place.masked_fill(index >= outcome.num_committed.unsqueeze(1), self._gamma).clamp(max=self._gamma)
        laws = outcome.target.all_probs
        if self._laws is None:
            # Where nothing is drafted for a row that is done, any law will do.
            self._laws = laws.new_full((len(rows), self._gamma + 1, laws.shape[2]), 1 / laws.shape[2])
        laws = laws.gather(1, rows.unsqueeze(2).expand(-1, -1, laws.shape[2]))
        self._laws.scatter_(1, place.unsqueeze(2).expand_as(laws), laws)

    def of_draft(self) -> Tensor:
        """[B, gamma, V] q."""
        assert self._laws is not None, "there is at least one round"
        return self._laws[:, : self._gamma]
