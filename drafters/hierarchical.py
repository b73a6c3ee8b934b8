"""Hierarchical drafter: a small drafter speculates for a middle model, which drafts for the target.

B rows, N nodes, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from framework.core.draft import Draft, Outcome, SamplingScheme, Shape
from framework.core.drafter import (
    Rewindable,
    follow,
    has_trees,
    is_refillable,
    models_of,
    most_nodes,
    proposal,
    resumes,
    rewinds,
)
from framework.core.option_error import OptionError, options_under
from framework.core.sampling import Sampling
from framework.core.sequences import Sequences
from framework.core.uniforms import RoundUniforms
from framework.core.validation import check_whole
from framework.decoding.device_round import DeviceRound, Rows
from framework.decoding.stopping import Finisher, Stopping
from framework.drafting.drafter_cache import DrafterCache
from framework.metrics.tally import Tally
from framework.models.cached_lm import CachedLM
from framework.models.pretrained import fingerprint
from framework.models.target import Target
from framework.verifiers.default_verifier import default_verifier

MOST_GAMMA = 1000


class Hierarchical:
    """Draws a chain from a middle model by speculative decoding (Globerson et al., 2025, 2510.19705).

    The inner rounds are exact, so their tokens are draws from the middle model's distribution. That distribution is q
    for every token, whether it was accepted, replaced or a bonus. Drafts are always gamma deep and never include the
    last token of the inner rounds, which the middle model has not read.

    Attributes:
        inner_tally: counts of the inner rounds since `begin`.
    """

    scheme = SamplingScheme.IID
    shape = Shape.CHAIN
    on_host = True  # the number of inner rounds is known to the host only round by round

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
            target: the target; both models must share its vocabulary and tokenizer.
            model: builds the middle model for that target.
            drafter: builds the inner drafter, with the middle model as its target.
            gamma: depth of the inner drafts, 1 to MOST_GAMMA.

        Raises:
            ValueError: gamma is out of range, the inner drafter lacks `rewind`, or a model is not supported.
        """
        check_whole("gamma", gamma, least=1, most=MOST_GAMMA)
        with options_under("model"):
            self.model = model(target)
        self._cache = DrafterCache(self.model)
        self.model.refuse_recurrent("hierarchical takes tokens back from drafter.model", "a model without them")
        middle = Target(self.model, target.tokenizer, target.vocabulary_size, fingerprint(self.model.model))
        with options_under("drafter"):
            inner = drafter(target=middle)
        if not rewinds(inner):
            raise OptionError(
                "drafter",
                type(inner).__name__,
                "drafters with `rewind`, such as SmallTransformer, TransformerTree or Hierarchical",
                "which cannot roll back tokens that the target rejects",
            )
        self.drafter = inner
        self._gamma = gamma
        self._rule = default_verifier(inner.scheme, inner.shape)
        self._middle = middle
        self._room = most_nodes(inner, gamma) + 2

    @property
    def models(self) -> list[nn.Module]:
        return [self.model.model, *models_of(self.drafter)]

    @property
    def _uniforms_a_round(self) -> int:
        return RoundUniforms.width(self.drafter.num_uniforms(self._gamma))

    def num_uniforms(self, gamma: int) -> int:
        """Uniforms of gamma + 1 inner rounds: gamma + 1 tokens are needed, and each round commits at least one."""
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
        if has_trees(self.drafter):
            self.drafter.build_trees(sequences.num_rows, self._gamma)
        sequences = self._ahead(sequences)
        self._cache.begin_with(sequences)
        self.drafter.begin(sequences, prefill, sampling)

    @property
    def refillable(self) -> bool:
        """Whether the inner drafter is."""
        return is_refillable(self.drafter)

    def begin_rows(self, rows: list[int], sequences: Sequences, prefill: Outcome) -> None:
        assert is_refillable(self.drafter), "refillable is False"
        self._cache.begin_rows(rows, sequences)
        self.drafter.begin_rows(rows, sequences, prefill)

    def propose(self, sequences: Sequences, gamma: int, uniforms: Tensor) -> Draft:
        """Draft exactly gamma tokens; a smaller gamma gives a prefix of the same draft."""
        ahead = self._ahead(sequences)
        stopping = Stopping(max_new_tokens=gamma + 1)
        rows = Rows(ahead, Finisher(ahead, stopping, context=ahead.tokens.shape[1]))
        q = _Distributions(sequences.lengths, gamma)
        self._cache.resume(ahead, 0)
        for numbers in uniforms.to(sequences.tokens.device).split(self._uniforms_a_round, dim=1):
            if not rows.finisher.most_remaining:
                break
            before, its = ahead.lengths.clone(), RoundUniforms(numbers)
            # Only as deep as tokens can be kept: a prefix of the deeper draft. Never empty, to keep the backlog short.
            depth = max(1, min(self._gamma, rows.finisher.most_remaining - 1))
            draft = proposal(self.drafter, ahead, depth, its.draft[:, : self.drafter.num_uniforms(depth)])
            outcome, packed = self._round.verify_and_commit(rows, draft, its)
            self.inner_tally.observe(self._round.read(rows, packed))
            if not self._sampling.greedy:
                q.take(outcome, before)
        places = sequences.lengths.unsqueeze(1) + torch.arange(gamma, device=sequences.lengths.device)
        tokens = ahead.tokens.gather(1, places)
        if self._sampling.greedy:
            return Draft.chain(tokens, SamplingScheme.ONE_HOT)
        return Draft.chain(tokens, SamplingScheme.IID, probs=q.of_draft())

    def observe(self, sequences: Sequences, outcome: Outcome) -> None:
        if outcome.draft.num_nodes:
            self.drafter.rewind(sequences)
            self._cache.rewind(sequences)
        else:  # the models read the tokens of rounds without a draft when they draft again
            self.drafter.observe(sequences, outcome)
            self._cache.keep_accepted(sequences, outcome)

    def follow(self, sequences: Sequences, outcome: Outcome) -> None:
        follow(self.drafter, sequences, outcome)
        self._cache.follow(outcome)

    def resume(self, sequences: Sequences, num_tokens: int) -> None:
        self._cache.resume(sequences, num_tokens)
        if resumes(self.drafter):
            self.drafter.resume(sequences, num_tokens)

    def rewind(self, sequences: Sequences) -> None:
        self.drafter.rewind(sequences)
        self._cache.rewind(sequences)

    def _ahead(self, sequences: Sequences) -> Sequences:
        """A copy to which the inner rounds commit tokens ahead of the target, with room for their drafts."""
        return replace(
            sequences,
            tokens=pad(sequences.tokens, (0, self._room)),
            lengths=sequences.lengths.clone(),
            texts=[list(text) for text in sequences.texts],
        )


class _Distributions:
    """The middle model's distributions of the drafted tokens, collected over the inner rounds."""

    def __init__(self, first: Tensor, gamma: int):
        """
        Args:
            first: [B] int64: position of the first drafted token.
            gamma: number of drafted tokens.
        """
        self._first, self._gamma = first, gamma
        self._distributions: Tensor | None = None  # [B, gamma + 1, V]; the last entry collects tokens outside the draft

    def take(self, outcome: Outcome, before: Tensor) -> None:
        """Record the distributions of a round whose tokens were committed from position `before` [B] int64 on."""
        rows = outcome.followed
        index = torch.arange(rows.shape[1], device=rows.device)
        place = (before - self._first).unsqueeze(1) + index
        place = place.masked_fill(index >= outcome.num_committed.unsqueeze(1), self._gamma).clamp(max=self._gamma)
        assert outcome.target is not None, "inner rounds have the middle model's probabilities"
        distributions = outcome.target.all_probs
        if self._distributions is None:
            # Finished rows draft nothing, so any distribution is valid for them.
            self._distributions = distributions.new_full(
                (len(rows), self._gamma + 1, distributions.shape[2]), 1 / distributions.shape[2]
            )
        distributions = distributions.gather(1, rows.unsqueeze(2).expand(-1, -1, distributions.shape[2]))
        self._distributions.scatter_(1, place.unsqueeze(2).expand_as(distributions), distributions)

    def of_draft(self) -> Tensor:
        """[B, gamma, V] q of the drafted tokens."""
        assert self._distributions is not None, "there is at least one round"
        return self._distributions[:, : self._gamma]
