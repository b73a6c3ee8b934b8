"""The loop: propose, one target pass, verify, commit, observe. The same for every drafter and acceptance rule."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from framework.compiled import Compiled
from framework.draft import Draft, Outcome, Readout, TargetRows
from framework.drafter import Drafter, most_nodes
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.generation import Generation
from framework.prefill import prefill
from framework.sampling import Sampling, draw
from framework.sequences import Sequences
from framework.stopping import Finisher, Stopping
from framework.stopwatch import Stopwatch
from framework.tally import Tally
from framework.target import Target
from framework.uniforms import Uniforms
from framework.verifiers.verifier import Verifier


@dataclass
class Decoding:
    """A generation under way: what the rounds read and write."""

    sequences: Sequences
    finisher: Finisher
    uniforms: Uniforms
    tally: Tally
    stopwatch: Stopwatch


class Engine:
    """Speculative decoding (Leviathan et al., 2023) for any drafter, verifier and gamma policy."""

    def __init__(
        self,
        *,
        target: Target,
        drafter: Drafter,
        verifier: Verifier,
        gamma_policy: GammaPolicy,
        sampling: Sampling,
        compiled: bool = False,
    ):
        """
        Args:
            compiled: whether the device's share of a round is made one program; the first round then takes a minute.

        Raises:
            ValueError: the verifier cannot verify this drafter's drafts.
        """
        verifier.check(drafter.law, drafter.shape)
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.gamma_policy = gamma_policy
        self.sampling = sampling
        self._program = Compiled(self._told_on_device, target.device) if compiled else None

    @torch.no_grad()
    def generate(
        self,
        prompts: list[list[int]],
        *,
        stopping: Stopping,
        seeds: list[int],
        detailed: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids per row, none empty, each within the model's context.
            stopping: what ends a row.
            seeds: one per row; with a fixed gamma a row's tokens depend on its prompt and its seed only.
            detailed: whether the tally sums overlaps; costs time, so not in timed runs.
            stopwatch: gets the stages prefill, begin, draft, target, verify and observe.

        Raises:
            ValueError: a prompt cannot be decoded.
            FloatingPointError: a law is not finite: NaN logits, or q = 0 for a drafted token.
        """
        stopwatch = stopwatch or Stopwatch(self.target.device)
        decoding = self.begin(prompts, stopping=stopping, seeds=seeds, detailed=detailed, stopwatch=stopwatch)
        while decoding.finisher.most_remaining:
            self.round(decoding)
        finisher = decoding.finisher
        return Generation(tokens=finisher.new_tokens, finish_reasons=finisher.finish_reasons, tally=decoding.tally)

    def begin(
        self, prompts: list[list[int]], *, stopping: Stopping, seeds: list[int], detailed: bool, stopwatch: Stopwatch
    ) -> Decoding:
        """Read the prompts and commit a first token: a round that proposed nothing."""
        device, max_gamma = self.target.device, self.gamma_policy.max_gamma
        uniforms = Uniforms(seeds, 2 + self.drafter.num_uniforms(max_gamma), device)
        with stopwatch.stage("prefill"):
            sequences, finisher, logits = prefill(self.target, prompts, stopping, max_nodes=self.max_nodes)
            decoding = Decoding(sequences, finisher, uniforms, self.new_tally(detailed=detailed), stopwatch)
            outcome, told = self._commit(Draft.empty(len(prompts), device), logits, decoding, uniforms.next_round())
            self._read(decoding, told)
            sequences.longest = finisher.longest
        with stopwatch.stage("begin"):
            self.gamma_policy.begin()
            if hasattr(self.drafter, "keep_drafting"):  # drafters that draft all nodes at once have no such thing
                self.drafter.keep_drafting = self.gamma_policy.keep_drafting
            self.drafter.begin(sequences, outcome, self.sampling)
        if self._program is not None:
            sequences.longest = sequences.tokens.shape[1]  # a program sees all slots there are
        return decoding

    def new_tally(self, *, detailed: bool) -> Tally:
        """Without counts yet, for generations of this engine."""
        return Tally(
            self.gamma_policy.max_gamma,
            self.max_nodes,
            shape=self.drafter.shape,
            detailed=detailed,
            token_rule=self.verifier.token_rule,
        )

    @property
    def max_nodes(self) -> int:
        """Most nodes that a draft may hold."""
        return most_nodes(self.drafter, self.gamma_policy.max_gamma)

    def round(self, decoding: Decoding) -> None:
        """Propose, one target pass over pending and the nodes, verify, commit, observe."""
        uniforms, finisher = decoding.uniforms.next_round(), decoding.finisher
        gamma = self.gamma_policy.next_gamma()
        if self._program is None or decoding.tally.detailed or not decoding.tally.passes.any():
            # One place is kept for the token that follows the accepted ones.
            gamma = min(gamma, finisher.most_remaining - 1)
            outcome, told = self._on_device(decoding, gamma, uniforms, decoding.stopwatch.stage)
            if decoding.tally.detailed:
                decoding.tally.observe_laws(outcome)
        else:
            with decoding.stopwatch.stage("round"):
                told = self._program((gamma, *decoding.sequences.tokens.shape), decoding, gamma, uniforms)
        with decoding.stopwatch.stage("observe"):
            readout = self._read(decoding, told)
            if self._program is None:
                decoding.sequences.longest = finisher.longest
            self.gamma_policy.observe(readout)
            decoding.tally.observe(readout)

    def _told_on_device(self, decoding: Decoding, gamma: int, uniforms: Tensor) -> Tensor:
        """What is compiled: the device's share of a round, with nothing left behind but what the host is told."""
        return self._on_device(decoding, gamma, uniforms, nullcontext)[1]

    def _on_device(
        self, decoding: Decoding, gamma: int, uniforms: Tensor, stage: Callable[[str], AbstractContextManager]
    ) -> tuple[Outcome, Tensor]:
        """The device's share of a round: all of it, but for what the host is told in the end."""
        sequences, finisher = decoding.sequences, decoding.finisher
        with stage("draft"):
            draft = Draft.empty(sequences.num_rows, self.target.device)
            if gamma:
                draft = self.drafter.propose(sequences, gamma, uniforms[:, 2 : 2 + self.drafter.num_uniforms(gamma)])
                draft = draft.offered(self._may_be_committed(draft, finisher))
        with stage("target"):
            tokens = torch.cat([sequences.pending.unsqueeze(1), draft.tokens], 1)
            logits = self.target.model.forward(
                tokens,
                sequences.lengths - 1,
                visible=sequences.longest + draft.num_nodes,
                tree=draft.tree,
            )
        with stage("verify"):
            outcome, told = self._commit(draft, logits, decoding, uniforms)
        with stage("observe"):
            self.drafter.observe(sequences, outcome)
        return outcome, told

    def _may_be_committed(self, draft: Draft, finisher: Finisher) -> Tensor:
        """[B, N] bool: nodes that are not behind an end-of-text node and leave room for the token that follows.

        Both depend on a node's ancestors only, so offering fewer nodes keeps the output's law.
        """
        behind_eos = draft.tree.behind(finisher.is_eos(draft.tokens))
        return ~behind_eos & (draft.tree.depth[:, 1:] < finisher.remaining.unsqueeze(1))

    def _commit(self, draft: Draft, logits: Tensor, decoding: Decoding, uniforms: Tensor) -> tuple[Outcome, Tensor]:
        """Draw where acceptance stops and what follows, and commit both: what became of the draft, and what to tell."""
        target = TargetRows(logits, draft, self.sampling, self.target.model.hidden)
        stop_law = self.verifier.stop_law(target, draft)
        stop = draw(stop_law, uniforms[:, 0])
        replacement = self.verifier.replacement(target, draft, stop)
        next_token = draw(replacement, uniforms[:, 1])
        healthy = (stop_law.sum(1) + replacement.sum(1)).isfinite()
        sequences = decoding.sequences
        active = sequences.active

        path = draft.tree.path(stop)
        num_accepted = draft.tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
        self.target.model.keep_path(draft.tree, path, after=sequences.lengths)
        tokens = torch.cat([draft.tokens.gather(1, path), next_token.unsqueeze(1)], 1)
        tokens.scatter_(1, num_accepted.unsqueeze(1), next_token.unsqueeze(1))
        outcome = Outcome(
            draft=draft,
            stop_law=stop_law,
            stop=stop,
            num_accepted=num_accepted,
            next_token=next_token,
            num_committed=decoding.finisher.commit(tokens, num_accepted + 1),
            active=active,
            target=target,
        )
        num_nodes = torch.full_like(stop, draft.num_nodes)
        counts = (num_nodes, active, draft.offered_depth, num_accepted, outcome.lost)
        return outcome, decoding.finisher.tell(tokens, outcome.num_committed, healthy, *counts)

    def _read(self, decoding: Decoding, told: Tensor) -> Readout:
        committed, num_nodes, active, offered, accepted, lost = decoding.finisher.read(told, 5)
        return Readout(num_nodes[0], active, offered, accepted, lost, committed)
