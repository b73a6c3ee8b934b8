"""Plain decoding through the same CachedLM: the yardstick for the law and for the walltime."""

from collections.abc import Sequence

import torch
from torch import Tensor

from framework.compiled import Compiled, reach_as_input
from framework.generation import Generation
from framework.prefill import prefill
from framework.sampling import Sampling
from framework.sequences import Prompt, Sequences
from framework.stopping import Finisher, Stopping
from framework.stopwatch import Stage, Stopwatch, untimed
from framework.target import Target
from framework.uniforms import Uniforms


class Autoregressive:
    """Draws one token per pass of the target from its standardised law."""

    def __init__(self, *, target: Target, sampling: Sampling, compiled: bool = False):
        """
        Args:
            compiled: whether the device's share of a step is made one program; the first step then takes a minute.
        """
        self.target = target
        self.sampling = sampling
        self._program = Compiled(self._on_device, target.device) if compiled else None

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids per row, none empty, each within the model's context.
            stopping: what ends a row.
            seeds: one per row; a row's tokens depend on its prompt and its seed only.
            stopwatch: gets the stages prefill, target and commit; compiled prefill, step and commit.

        Raises:
            ValueError: a prompt cannot be decoded.
            FloatingPointError: the target's logits hold NaN.
        """
        stopwatch = stopwatch or Stopwatch(self.target.device)
        uniforms = Uniforms(seeds, 1, self.target.device)
        with stopwatch.stage("prefill"):
            sequences, finisher, logits = prefill(self.target, prompts, stopping, max_nodes=0)
            finisher.read(self._commit(logits, finisher, uniforms.next_round()), 0)
        while finisher.most_remaining:
            told = self._step(sequences, finisher, uniforms.next_round(), stopwatch.stage)
            with stopwatch.stage("commit"):
                finisher.read(told, 0)
        return Generation(tokens=finisher.new_tokens, finish_reasons=finisher.finish_reasons)

    def _step(self, sequences: Sequences, finisher: Finisher, uniforms: Tensor, stage: Stage) -> Tensor:
        """One token for every row: what the host is to read."""
        if self._program is None:
            return self._on_device(sequences, finisher, uniforms, stage)
        with stage("step"), reach_as_input(sequences):
            return self._program(sequences.shape, sequences, finisher, uniforms)

    def _on_device(self, sequences: Sequences, finisher: Finisher, uniforms: Tensor, stage: Stage = untimed) -> Tensor:
        """A step, but for the host's share."""
        with stage("target"):
            pending = sequences.pending.unsqueeze(1)
            logits = self.target.model.forward(pending, sequences.lengths - 1, visible=sequences.longest)
        with stage("commit"):
            return self._commit(logits, finisher, uniforms)

    def _commit(self, logits: Tensor, finisher: Finisher, uniforms: Tensor) -> Tensor:
        """Draw a token per row from logits [B, 1, V] and commit it: what the host is to read."""
        token = self.sampling.sample(logits[:, 0], uniforms[:, 0])
        kept = finisher.commit(token.unsqueeze(1), torch.ones_like(token))
        return finisher.tell(token.unsqueeze(1), kept, logits[:, 0].amax(1).isfinite())
