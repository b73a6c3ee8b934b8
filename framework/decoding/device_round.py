"""The device's part of a round: propose, target pass, verify, commit, observe, all without synchronisation.

It can therefore be queued as a whole and compiled into one graph (`framework.decoding.compiled_round`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from framework.core.cached_property import cached_property
from framework.core.draft import Draft, Outcome, Readout, TargetRows
from framework.core.drafter import Drafter, ShouldContinue, drafts_on_host, hidden_layers_of, proposal
from framework.core.sampling import Sampling, draw
from framework.core.sequences import Sequences
from framework.core.uniforms import RoundUniforms, Uniforms
from framework.decoding.round_summary import HostCopy, Pipeline, RoundSummary, StepSummary
from framework.decoding.stopping import Finisher
from framework.gamma_policies.gamma_policy import WithShadowDrafts
from framework.metrics.stopwatch import Stage, Stopwatch, untimed
from framework.metrics.tally import Tally
from framework.models.forward_output import ForwardOutput
from framework.models.target import Target
from framework.verifiers.verifier import Guarantee, Verifier


@dataclass
class Rows:
    """State that a round commits to: the sequences and their finisher."""

    sequences: Sequences
    finisher: Finisher

    def replace_rows(self, rows: list[int], others: "Rows") -> None:
        """Replace rows by all rows of others, in place."""
        self.sequences.replace_rows(rows, others.sequences)
        self.finisher.replace_rows(rows, others.finisher)


@dataclass
class Decoding(Rows):
    """State of a generation in progress."""

    uniforms: Uniforms
    tally: Tally
    stopwatch: Stopwatch
    number: int  # of this generation among those of the target
    on_round: Callable[[Outcome], None] | None = None
    shadow_policy: WithShadowDrafts | None = None  # the gamma policy of this generation; None: no shadow drafts
    gamma: int = 0  # of the latest compiled round, if the drafter resumes
    num_undrafted: int = 0  # compiled rounds without a draft since the latest draft, if the drafter resumes
    pipeline: Pipeline = field(default_factory=Pipeline)

    @property
    def is_observed(self) -> bool:
        """Whether full outcomes are needed; compiled rounds do not return them."""
        return self.tally.detailed or self.on_round is not None

    @cached_property
    def no_draft(self) -> Draft:
        """Draft without nodes, one for all rounds."""
        return Draft.empty(self.sequences.num_rows, self.sequences.tokens.device)


class _Drawn(NamedTuple):
    """Draws of a round.

    Attributes:
        stop_probs: [B, N + 1] probabilities of stopping at pending and after every node.
        stop: [B] int64: the last accepted node; 0: pending.
        num_accepted: [B] int64.
        next_token: [B] int64: the replaced or bonus token.
        tokens: [B, D + 1] int64: accepted path and next token, meaningless beyond num_accepted + 1.
        healthy: [B] bool: whether the distributions drawn from are valid.
    """

    stop_probs: Tensor
    stop: Tensor
    num_accepted: Tensor
    next_token: Tensor
    tokens: Tensor
    healthy: Tensor


class DeviceRound:
    """The part of a round that runs before the host reads its summary."""

    def __init__(self, *, target: Target, drafter: Drafter, verifier: Verifier, sampling: Sampling):
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.sampling = sampling
        self.hidden_layers = hidden_layers_of(drafter)

    def propose(
        self, sequences: Sequences, gamma: int, uniforms: RoundUniforms, should_continue: ShouldContinue | None = None
    ) -> Draft:
        """Draft at most gamma tokens deep; the draft is empty for gamma = 0."""
        if not gamma:
            return Draft.empty(sequences.num_rows, self.target.device)
        numbers = uniforms.draft_on_host if drafts_on_host(self.drafter) else uniforms.draft
        numbers = numbers[:, : self.drafter.num_uniforms(gamma)]
        return proposal(self.drafter, sequences, gamma, numbers, should_continue)

    def verify_and_commit(
        self,
        rows: Rows,
        draft: Draft,
        uniforms: RoundUniforms,
        *,
        longest: int | None = None,
        stage: Stage = untimed,
    ) -> tuple[Outcome, Tensor]:
        """Run one target pass over pending and the nodes, verify, commit, and let the drafter observe.

        Args:
            longest: replacement of `Sequences.longest`, at least as large, as an input of a compiled graph; None: no
                replacement.
            stage: timer of the stages target, verify and observe.

        Returns:
            the outcome and the packed `RoundSummary`.
        """
        sequences = rows.sequences
        with stage("target"):
            if draft.num_nodes:
                draft = draft.offered(self._may_be_committed(draft, rows.finisher))
            tokens = torch.cat([sequences.pending.unsqueeze(1), draft.tokens], 1)
            output = self.target.model.forward(
                tokens,
                sequences.lengths - 1,
                visible=(sequences.longest if longest is None else longest) + draft.num_nodes,
                tree=draft.tree,
                layers=self.hidden_layers,
            )
        with stage("verify"):
            outcome, packed = self.commit(rows, draft, output, uniforms)
        with stage("observe"):
            self.drafter.observe(sequences if longest is None else sequences.with_longest(longest), outcome)
        return outcome, packed

    def _may_be_committed(self, draft: Draft, finisher: Finisher) -> Tensor:
        """[B, N] bool: nodes without an end-of-text ancestor that leave room for the replaced or bonus token.

        Both conditions depend on a node's ancestors only, so offering fewer nodes preserves the output distribution.
        """
        after_eos = draft.tree.after(finisher.is_eos(draft.tokens))
        return ~after_eos & (draft.tree.depth[:, 1:] < finisher.remaining.unsqueeze(1))

    def commit(
        self, rows: Rows, draft: Draft, output: ForwardOutput, uniforms: RoundUniforms
    ) -> tuple[Outcome, Tensor]:
        """Draw where acceptance stops and the next token, and commit them; returns as `verify_and_commit`."""
        model, finisher = self.target.model, rows.finisher
        logits = self.target.processors.of_round(
            output.logits, rows.sequences, draft, eos=finisher.eos, max_lengths=finisher.max_lengths
        )
        target = TargetRows(logits, draft, self.sampling)
        if not draft.num_nodes and self.verifier.guarantee is Guarantee.EXACT:
            return self._committed(rows, target, output, self._draw_plain(target, uniforms))
        stop_probs = self.verifier.stop_probs(target, draft)
        _require_shape("stop_probs", stop_probs, logits.shape[:2])
        stop = draw(stop_probs, uniforms.stop)
        next_token_probs = self.verifier.next_token_probs(target, draft, stop)
        _require_shape("next_token_probs", next_token_probs, logits.shape[::2])
        next_token = draw(next_token_probs, uniforms.next)
        healthy = _can_be_drawn_from(stop_probs) & _can_be_drawn_from(next_token_probs)
        path = draft.tree.path(stop)
        num_accepted = draft.tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
        model.keep_path(draft.tree, path, after=rows.sequences.lengths)
        tokens = torch.cat([draft.tokens.gather(1, path), next_token.unsqueeze(1)], 1)
        tokens.scatter_(1, num_accepted.unsqueeze(1), next_token.unsqueeze(1))
        drawn = _Drawn(stop_probs, stop, num_accepted, next_token, tokens, healthy)
        return self._committed(rows, target, output, drawn)

    def _draw_plain(self, target: TargetRows, uniforms: RoundUniforms) -> _Drawn:
        """Draw as plain decoding does: after an empty draft, every exact rule draws from p."""
        logits = target.logits[:, 0]
        next_token, healthy = self.sampling.sample(logits, uniforms.next)
        nothing = torch.zeros_like(next_token)
        return _Drawn(
            stop_probs=torch.ones(len(logits), 1, device=logits.device),
            stop=nothing,
            num_accepted=nothing,
            next_token=next_token,
            tokens=next_token.unsqueeze(1),
            healthy=healthy,
        )

    @staticmethod
    def _committed(rows: Rows, target: TargetRows, output: ForwardOutput, drawn: _Drawn) -> tuple[Outcome, Tensor]:
        """Commit the drawn tokens; returns as `verify_and_commit`.

        Without a draft the summary is a `StepSummary`, so that the round's graph is as small as that of a plain step.
        """
        draft, active = target.draft, rows.sequences.active.clone()
        outcome = Outcome(
            draft=draft,
            stop_probs=drawn.stop_probs,
            stop=drawn.stop,
            num_accepted=drawn.num_accepted,
            next_token=drawn.next_token,
            num_committed=rows.finisher.commit(drawn.tokens, drawn.num_accepted + 1),
            active=active,
            target=target,
            hidden=output.scored_states,
            states=output.hidden_states,
            features=output.features,
        )
        step = StepSummary(drawn.tokens, outcome.num_committed, drawn.healthy)
        if not draft.num_nodes:
            return outcome, step.pack()
        summary = RoundSummary(
            **vars(step),
            num_nodes=torch.full_like(drawn.stop, draft.num_nodes),
            offered=draft.offered_depth,
            accepted=drawn.num_accepted,
            rejected=outcome.rejected,
        )
        return outcome, summary.pack()

    @staticmethod
    def read(rows: Rows, packed: Tensor | HostCopy) -> Readout:
        """Unpack a `RoundSummary` and update the host's state from it."""
        # The last token of a budget is the replaced or bonus token.
        max_depth = [left - 1 for left in rows.finisher.left]
        active = [int(left > 0) for left in rows.finisher.left]
        # The only synchronisation of a round.
        summary: RoundSummary[list[int]] = RoundSummary.unpack(packed)
        committed = rows.finisher.read(summary)
        return Readout(
            num_nodes=summary.num_nodes[0],
            active=active,
            offered=summary.offered,
            accepted=summary.accepted,
            rejected=summary.rejected,
            committed=committed,
            max_depth=max_depth,
        )


def _require_shape(name: str, probs: Tensor, expected: torch.Size) -> None:
    """
    Raises:
        ValueError: the verifier's probabilities have another shape.
    """
    if probs.shape != expected:
        raise ValueError(f"the verifier's {name} is {list(probs.shape)}; expected {list(expected)}")


def _can_be_drawn_from(probs: Tensor) -> Tensor:
    """[B] bool: whether probs [B, S] are finite, non-negative and not all zero; NaN fails every comparison."""
    least, most = probs.aminmax(dim=1)
    return (least >= 0) & (most > 0) & (most < torch.inf)
