"""The device's share of a round: propose, one target pass, verify, commit, observe. Nothing in it asks the device.

So all of it can be queued, and made one program (`framework.compiled`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from framework.draft import Draft, Outcome, Readout, TargetRows
from framework.drafter import Drafter, drafts_on_host
from framework.sampling import Sampling, draw
from framework.sequences import Sequences
from framework.stopping import Finisher
from framework.stopwatch import Stage, Stopwatch, untimed
from framework.tally import Tally
from framework.target import Target
from framework.uniforms import Uniforms
from framework.verifiers.verifier import Verifier


@dataclass
class Rows:
    """What a round commits to: the tokens so far, and who is finished."""

    sequences: Sequences
    finisher: Finisher


@dataclass
class Decoding(Rows):
    """A generation under way: what the rounds read and write."""

    uniforms: Uniforms
    tally: Tally
    stopwatch: Stopwatch
    watch: Callable[[Outcome], None] | None = None


class DeviceRound:
    """What a round does before the host looks at it."""

    def __init__(self, *, target: Target, drafter: Drafter, verifier: Verifier, sampling: Sampling):
        self.target = target
        self.drafter = drafter
        self.verifier = verifier
        self.sampling = sampling

    def propose(self, decoding: Decoding, gamma: int, uniforms: Tensor) -> Draft:
        """At most gamma tokens deep; empty for a gamma of 0."""
        if not gamma:
            return Draft.empty(decoding.sequences.num_rows, self.target.device)
        used = self.drafter.num_uniforms(gamma)
        if drafts_on_host(self.drafter):
            uniforms = decoding.uniforms.of_this_round_on_host()
        return self.drafter.propose(decoding.sequences, gamma, uniforms[:, 2 : 2 + used])

    def judge(self, rows: Rows, draft: Draft, uniforms: Tensor, stage: Stage = untimed) -> tuple[Outcome, Tensor]:
        """One target pass over pending and the nodes, verify, commit, observe.

        Returns:
            what became of the draft, and what the host is to read (`read`).
        """
        sequences = rows.sequences
        with stage("target"):
            draft = draft.offered(self._may_be_committed(draft, rows.finisher))
            tokens = torch.cat([sequences.pending.unsqueeze(1), draft.tokens], 1)
            logits = self.target.model.forward(
                tokens,
                sequences.lengths - 1,
                visible=sequences.longest + draft.num_nodes,
                tree=draft.tree,
            )
        with stage("verify"):
            outcome, told = self.commit(rows, draft, logits, uniforms)
        with stage("observe"):
            self.drafter.observe(sequences, outcome)
        return outcome, told

    def _may_be_committed(self, draft: Draft, finisher: Finisher) -> Tensor:
        """[B, N] bool: nodes that are not behind an end-of-text node and leave room for the token that follows.

        Both depend on a node's ancestors only, so offering fewer nodes keeps the output's law.
        """
        behind_eos = draft.tree.behind(finisher.is_eos(draft.tokens))
        return ~behind_eos & (draft.tree.depth[:, 1:] < finisher.remaining.unsqueeze(1))

    def commit(self, rows: Rows, draft: Draft, logits: Tensor, uniforms: Tensor) -> tuple[Outcome, Tensor]:
        """Draw where acceptance stops and what follows, and commit both: what became of the draft, and what to tell."""
        model = self.target.model
        target = TargetRows(logits, draft, self.sampling, model.hidden, model.states)
        stop_law = self.verifier.stop_law(target, draft)
        stop = draw(stop_law, uniforms[:, 0])
        replacement = self.verifier.replacement(target, draft, stop)
        next_token = draw(replacement, uniforms[:, 1])
        healthy = (stop_law.sum(1) + replacement.sum(1)).isfinite()
        sequences = rows.sequences
        active = sequences.active

        path = draft.tree.path(stop)
        num_accepted = draft.tree.depth.gather(1, stop.unsqueeze(1)).squeeze(1)
        model.keep_path(draft.tree, path, after=sequences.lengths)
        tokens = torch.cat([draft.tokens.gather(1, path), next_token.unsqueeze(1)], 1)
        tokens.scatter_(1, num_accepted.unsqueeze(1), next_token.unsqueeze(1))
        outcome = Outcome(
            draft=draft,
            stop_law=stop_law,
            stop=stop,
            num_accepted=num_accepted,
            next_token=next_token,
            num_committed=rows.finisher.commit(tokens, num_accepted + 1),
            active=active,
            target=target,
        )
        num_nodes = torch.full_like(stop, draft.num_nodes)
        counts = (num_nodes, active, draft.offered_depth, num_accepted, outcome.lost)
        return outcome, rows.finisher.tell(tokens, outcome.num_committed, healthy, *counts)

    @staticmethod
    def read(rows: Rows, told: Tensor) -> Readout:
        """Let the host know what a round did."""
        room = [left - 1 for left in rows.finisher.left]  # one place is for the token that follows
        committed, num_nodes, active, offered, accepted, lost = rows.finisher.read(told, 5)
        return Readout(num_nodes[0], active, offered, accepted, lost, committed, room)
