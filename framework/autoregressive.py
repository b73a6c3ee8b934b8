"""Plain decoding through the same CachedLM: the yardstick for the law and for the walltime."""

import torch

from framework.generation import Generation
from framework.prefill import prefill
from framework.sampling import Sampling
from framework.stopping import Stopping
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
            sequences, finisher, logits = prefill(self.target, prompts, stopping, max_gamma=0)
        while True:
            with stopwatch.stage("commit"):
                token = self.sampling.sample(logits[:, 0], uniforms.next_round()[:, 0])
                finisher.commit(token.unsqueeze(1), torch.ones_like(token), ~logits.sum((1, 2)).isnan())
            if not finisher.most_remaining:
                break
            with stopwatch.stage("target"):
                logits = self.target.model.forward(token.unsqueeze(1), sequences.lengths - 1, visible=sequences.longest)
        return Generation(tokens=finisher.new_tokens, finish_reasons=finisher.finish_reasons)
