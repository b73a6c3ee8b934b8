"""Plain decoding with the same CachedLM: the baseline for output distribution and walltime."""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.core.fixed_buffer import FixedBuffers
from framework.core.sampling import Sampling
from framework.core.sequences import Prompt, Sequences
from framework.core.uniforms import Uniforms
from framework.decoding.compiled_round import longest_as_input
from framework.decoding.device_round import Rows
from framework.decoding.generation import Generation
from framework.decoding.prefill import prefill, prefill_rows
from framework.decoding.refill import Queue, Refill
from framework.decoding.round_summary import Pipeline, StepSummary
from framework.decoding.stopping import Finisher, Stopping
from framework.kernels.compiled_graphs import Compiled, runs_later
from framework.metrics.stopwatch import Stage, Stopwatch, untimed
from framework.models.target import Target


class Autoregressive:
    """Samples one token per target pass from the target's standardised distribution."""

    def __init__(self, *, target: Target, sampling: Sampling, compiled: bool = False):
        """
        Args:
            compiled: whether to compile the device's part of a step into one graph; the first step then takes a minute.

        Raises:
            ValueError: `compiled` is set for a target with recurrent layers, or for a sharded one.
        """
        if compiled:
            target.model.refuse_compiling()
        self.target = target
        self.sampling = sampling
        self._graph = Compiled(self._on_device, target.device, name="a step of plain decoding") if compiled else None
        self._buffers = FixedBuffers()
        self._can_queue = compiled and runs_later(target.device)

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        stopping: Stopping,
        seeds: list[int],
        stopwatch: Stopwatch | None = None,
        queue: Queue | None = None,
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids of each, none empty, each shorter than the model's context.
            stopping: stopping criteria of a row.
            seeds: one per prompt; the tokens of a prompt depend only on it and its seed.
            stopwatch: times the stages prefill, target and commit; if compiled, prefill, step and commit.
            queue: order in which finished rows take further prompts; None: every prompt has a row from the beginning.

        Raises:
            ValueError: a prompt cannot be decoded, or seeds are not one whole number per prompt; the target cannot
                begin in single rows.
            FloatingPointError: the target's logits hold NaN.
        """
        refill = Refill(prompts, seeds, queue)
        if refill.waiting:
            self.target.model.refuse_refilling()
        stopwatch = stopwatch or Stopwatch(self.target.device)
        uniforms = Uniforms(refill.first.seeds, 1, self.target.device)
        with stopwatch.stage("prefill"):
            sequences, finisher, output = prefill(
                self.target,
                refill.first.prompts,
                stopping,
                max_nodes=0,
                waiting=refill.waiting,
                compiled=self._graph is not None,
            )
            if self._graph is not None:  # which has recorded the addresses of these buffers
                self._buffers.hold(sequences, finisher)
            numbers = uniforms.next_round().numbers
            finisher.read(StepSummary.unpack(self._commit(output.logits, sequences, finisher, numbers)))
        rows, num_steps = Rows(sequences, finisher), 0
        self._refill(rows, uniforms, refill, stopwatch)
        stopwatch.end_round()
        pipeline, can_queue = Pipeline(), self._can_queue and not (stopping.stop_strings or refill.waiting)
        while finisher.most_remaining:
            packed = pipeline.next_summary(
                lambda: self._step(sequences, finisher, uniforms.next_round().numbers, stopwatch.stage),
                another=can_queue and finisher.most_remaining > 1,
            )
            with stopwatch.stage("commit"):
                finisher.read(StepSummary.unpack(packed))
            num_steps += 1
            stopwatch.end_round()
            self._refill(rows, uniforms, refill, stopwatch)
        return Generation(tokens=refill.tokens, finish_reasons=refill.finish_reasons, num_steps=num_steps)

    def _refill(self, rows: Rows, uniforms: Uniforms, refill: Refill, stopwatch: Stopwatch) -> None:
        """Begin waiting prompts in finished rows, and commit the first token of each."""
        while new := refill.newcomers(rows.finisher):
            with stopwatch.stage("prefill"):
                sequences, finisher, output = prefill_rows(
                    self.target, new.prompts, new.rows, rows.finisher, compiled=self._graph is not None
                )
                numbers = uniforms.begin_rows(new.rows, new.seeds).numbers
                finisher.read(StepSummary.unpack(self._commit(output.logits, sequences, finisher, numbers)))
                rows.replace_rows(new.rows, Rows(sequences, finisher))

    def _step(self, sequences: Sequences, finisher: Finisher, uniforms: Tensor, stage: Stage) -> Tensor:
        """Decode one token per row; returns the packed `StepSummary`."""
        if self._graph is None:
            return self._on_device(sequences, finisher, uniforms, sequences.longest, stage)
        with stage("step"):
            return self._graph(sequences.shape, sequences, finisher, uniforms, longest_as_input(sequences))

    def _on_device(
        self, sequences: Sequences, finisher: Finisher, uniforms: Tensor, longest: int, stage: Stage = untimed
    ) -> Tensor:
        """Run the device's part of a step; returns the packed `StepSummary`."""
        with stage("target"):
            pending = sequences.pending.unsqueeze(1)
            logits = self.target.model.forward(pending, sequences.lengths - 1, visible=longest).logits
        with stage("commit"):
            return self._commit(logits, sequences, finisher, uniforms)

    def _commit(self, logits: Tensor, sequences: Sequences, finisher: Finisher, uniforms: Tensor) -> Tensor:
        """Sample a token per row from raw logits [B, 1, V] and commit it; returns the packed `StepSummary`."""
        logits = self.target.processors.of_round(
            logits, sequences, None, eos=finisher.eos, max_lengths=finisher.max_lengths
        )
        token, healthy = self.sampling.sample(logits[:, 0], uniforms[:, 0])
        kept = finisher.commit(token.unsqueeze(1), torch.ones_like(token))
        return StepSummary(token.unsqueeze(1), kept, healthy).pack()
