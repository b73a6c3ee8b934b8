"""Plain decoding through the same CachedLM: the yardstick for the law and for the walltime."""

import torch
from torch import Tensor

from framework.generation import Generation
from framework.prefill import prefill
from framework.sampling import Sampling
from framework.stopping import Finisher, Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target
from framework.uniforms import Uniforms


class Autoregressive:
    """Draws one token per pass of the target from its standardised law."""

    def __init__(self, *, target: Target, sampling: Sampling):
        self.target = target
        self.sampling = sampling

    @torch.no_grad()
    def generate(
        self, prompts: list[list[int]], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation:
        """Decode a batch of prompts.

        Args:
            prompts: token ids per row, none empty, each within the model's context.
            stopping: what ends a row.
            seeds: one per row; a row's tokens depend on its prompt and its seed only.
            stopwatch: gets the stages prefill, target and commit.

        Raises:
            ValueError: a prompt cannot be decoded.
            FloatingPointError: the target's logits hold NaN.
        """
        stopwatch = stopwatch or Stopwatch(self.target.device)
        uniforms = Uniforms(seeds, 1, self.target.device)
        with stopwatch.stage("prefill"):
            sequences, finisher, logits = prefill(self.target, prompts, stopping, max_nodes=0)
            token = self._commit(logits[:, 0], finisher, uniforms.next_round())
            sequences.longest = finisher.longest
        while finisher.most_remaining:
            with stopwatch.stage("target"):
                logits = self.target.model.forward(token.unsqueeze(1), sequences.lengths - 1, visible=sequences.longest)
            with stopwatch.stage("commit"):
                token = self._commit(logits[:, 0], finisher, uniforms.next_round())
                sequences.longest = finisher.longest
        return Generation(tokens=finisher.new_tokens, finish_reasons=finisher.finish_reasons)

    def _commit(self, logits: Tensor, finisher: Finisher, uniforms: Tensor) -> Tensor:
        """[B] int64: draw a token per row from logits [B, V] and commit it."""
        token = self.sampling.sample(logits, uniforms[:, 0])
        tokens = token.unsqueeze(1)
        kept = finisher.commit(tokens, torch.ones_like(token))
        finisher.read(finisher.tell(tokens, kept, logits.amax(1).isfinite()), 0)
        return token
