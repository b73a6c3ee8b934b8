"""CompiledRound: the device's part of a round as one compiled graph."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from framework.core.draft import Draft
from framework.core.drafter import Drafter, Resuming, drafts_on_host, is_stepwise, resumes
from framework.core.fixed_buffer import FixedBuffers
from framework.core.sequences import Sequences
from framework.core.uniforms import RoundUniforms
from framework.decoding.device_round import Decoding, DeviceRound
from framework.decoding.stopping import Finisher
from framework.gamma_policies.fixed import Fixed
from framework.gamma_policies.gamma_policy import GammaPolicy
from framework.kernels.compiled_graphs import Compiled, Varying, eager_products, runs_later


class CompiledRound:
    """The device's part of a round as one compiled graph, without the draft if drafting involves the host."""

    def __init__(self, on_device: DeviceRound, gamma_policy: GammaPolicy):
        self._on_device = on_device
        self._gamma_policy = gamma_policy
        self._drafts_outside = drafts_outside(on_device.drafter, gamma_policy)
        self._resuming = on_device.drafter if resumes(on_device.drafter) else None
        run = self._verify_and_commit if self._drafts_outside else self._draft_verify_and_commit
        self._graph = Compiled(run, on_device.target.device, name="a round")
        self._buffers = FixedBuffers()

    def begin(self, sequences: Sequences, finisher: Finisher) -> None:
        """Move the state of a new generation into the buffers of earlier ones, which the graphs have recorded."""
        self._buffers.hold(sequences, finisher)

    def run(self, decoding: Decoding, gamma: int, uniforms: RoundUniforms) -> Tensor:
        """Run the device's part of a round; returns the packed `RoundSummary`."""
        sequences, stage = decoding.sequences, decoding.stopwatch.stage
        if self._resuming is not None:
            self._resume(self._resuming, decoding, gamma)
        if not self._drafts_outside:
            with stage("round"):
                return self._graph((gamma, *sequences.shape), decoding, gamma, uniforms, longest_as_input(sequences))
        draft = decoding.no_draft
        if gamma:
            with stage("draft"), self._products():
                found = self._on_device.propose(sequences, gamma, uniforms, self._gamma_policy.should_continue)
                if found.num_nodes:  # one graph for all lengths up to gamma, another one for rounds without a draft
                    draft = found.padded(gamma)
        with stage("verify_and_commit"):
            return self._graph(
                (draft.num_nodes, *sequences.shape), decoding, draft, uniforms, longest_as_input(sequences)
            )

    def _resume(self, drafter: Resuming, decoding: Decoding, gamma: int) -> None:
        """Prepare the drafter for another gamma than that of the round before, and count rounds without a draft."""
        if gamma and gamma != decoding.gamma:
            with decoding.stopwatch.stage("draft"), self._products():
                drafter.resume(decoding.sequences, decoding.num_undrafted)
        decoding.num_undrafted = 0 if gamma else decoding.num_undrafted + 1
        decoding.gamma = gamma

    def _products(self) -> AbstractContextManager[object]:
        """Context of a draft outside the graph."""
        drafter = self._on_device.drafter
        return nullcontext() if drafts_on_host(drafter) else eager_products(self._on_device.target.device)

    def _draft_verify_and_commit(self, decoding: Decoding, gamma: int, uniforms: RoundUniforms, longest: int) -> Tensor:
        draft = self._on_device.propose(decoding.sequences.with_longest(longest), gamma, uniforms)
        return self._verify_and_commit(decoding, draft, uniforms, longest)

    def _verify_and_commit(self, decoding: Decoding, draft: Draft, uniforms: RoundUniforms, longest: int) -> Tensor:
        draft = replace(draft)  # a graph returns what it computes for an object that it was given
        return self._on_device.verify_and_commit(decoding, draft, uniforms, longest=longest)[1]


def drafts_outside(drafter: Drafter, gamma_policy: GammaPolicy) -> bool:
    """Whether drafting involves the host: the drafter runs there, or the gamma policy may end a draft early."""
    ends_them = gamma_policy.should_continue is not None and is_stepwise(drafter)
    return ends_them or drafts_on_host(drafter)


def can_be_queued(drafter: Drafter, gamma_policy: GammaPolicy, device: torch.device) -> bool:
    """Whether a compiled round can be queued before the host has read the previous one."""
    drafts_there = not gamma_policy.max_gamma or not drafts_outside(drafter, gamma_policy)
    return runs_later(device) and drafts_there and isinstance(gamma_policy, Fixed)


def longest_as_input(sequences: Sequences) -> int:
    """`Sequences.longest`, which changes every round, as an argument that triggers no recompilation.

    On a GPU the argument is the width of the buffer, since a CUDA graph has fixed shapes; passes attend over all slots.
    """
    return Varying(sequences.longest) if sequences.tokens.device.type == "cpu" else sequences.tokens.shape[1]
