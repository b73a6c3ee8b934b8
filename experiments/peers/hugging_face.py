"""Hugging Face's `generate` behind the `Decoder` interface, as the reference for the baseline."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from framework.core.sampling import Sampling
from framework.core.sequences import Conditioned, Prompt, text_of
from framework.decoding.beam_search import BeamGeneration
from framework.decoding.generation import Generation
from framework.decoding.hypotheses import Hypothesis
from framework.decoding.stopping import Stopping
from framework.metrics.stopwatch import Stopwatch
from framework.models.cached_lm import CachedLM
from framework.models.target import Target


class HuggingFaceGenerate:
    """Decoding by transformers with the target's own model object, one prompt at a time.

    Decoding is plain unless a drafter, prompt lookup or beam search is configured.
    """

    def __init__(
        self,
        *,
        target: Target,
        sampling: Sampling,
        drafter: CachedLM | None = None,
        gamma: int | None = None,
        copied_tokens: int | None = None,
        beams: Mapping[str, Any] | None = None,
    ):
        """
        Args:
            drafter: assistant model; None: no assisted decoding.
            gamma: tokens drafted per round; None: transformers' defaults.
            copied_tokens: tokens copied from the text per round (prompt lookup); None: no prompt lookup.
            beams: num_beams (at least 2), length_penalty and early_stopping of beam search, at temperature 0; None: no
                beam search.
        """
        self.target = target
        self.sampling = sampling
        self._drafting: dict[str, Any] = {}
        if drafter is not None:
            self._drafting["assistant_model"] = drafter.model
        if copied_tokens is not None:
            self._drafting["prompt_lookup_num_tokens"] = copied_tokens
        self._drafter, self._gamma = drafter, gamma
        self._beams = dict(beams or {})

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], *, stopping: Stopping, seeds: list[int], stopwatch: Stopwatch | None = None
    ) -> Generation:
        """Decode a batch of one prompt.

        Above temperature 0 the tokens differ from the baseline's at the same seed.

        Raises:
            ValueError: more than one prompt; ragged batches need padding, which would distort the measurement.
        """
        if len(prompts) != 1:
            raise ValueError(f"Hugging Face generate is measured one prompt at a time; got {len(prompts)}")
        options: dict[str, Any] = {"do_sample": False}
        if not self.sampling.greedy:
            options = {
                "do_sample": True,
                "temperature": self.sampling.temperature,
                "top_k": int(self.sampling.top_k),
                "top_p": self.sampling.top_p,
                "typical_p": 1.0,
            } | ({"min_p": self.sampling.min_p} if self.sampling.min_p else {})
        stopwatch = stopwatch or Stopwatch(self.target.device)
        prompt = self.target.as_prompt(prompts[0])
        text = text_of(prompt)
        given = torch.tensor([prompt.source if isinstance(prompt, Conditioned) else text], device=self.target.device)
        if isinstance(prompt, Conditioned):
            options["decoder_input_ids"] = torch.tensor([text], device=self.target.device)
        model = self.target.model.model
        with self._options(stopping), self._constant_gamma(), ExitStack() as prefill:
            prefill.enter_context(stopwatch.stage("prefill"))
            # Not a logits processor: the drafter applies those too, before the target does.
            hook = model.register_forward_hook(lambda *_: prefill.close())
            prefill.callback(hook.remove)
            output = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=stopping.max_new_tokens,
                eos_token_id=list(stopping.eos_ids) or None,
                pad_token_id=stopping.eos_ids[0] if stopping.eos_ids else 0,
                **options,
                **self._drafting,
                **self._how_many_beams(),
            )
        if self._beams:
            return _beams_of(output, len(text), stopping)
        return Generation(tokens=[output[0, len(text) :].tolist()], finish_reasons=[""])

    def _how_many_beams(self) -> dict[str, Any]:
        if not self._beams:
            return {"num_beams": 1}
        wanted = {"return_dict_in_generate": True, "output_scores": True}
        return self._beams | wanted | {"num_return_sequences": self._beams["num_beams"]}

    @contextmanager
    def _options(self, stopping: Stopping) -> Iterator[None]:
        """Keep only the options of the model's generation config that the target's logits processors apply."""
        model: Any = self.target.model.model
        own, options = model.generation_config, dict(self.target.processors.options)
        if not stopping.eos_ids:
            options.pop("exponential_decay_length_penalty", None)  # transformers needs an end-of-text token for it
        starts = {name: getattr(own, name, None) for name in ("bos_token_id", "decoder_start_token_id")}
        model.generation_config = GenerationConfig(**starts, **options)
        try:
            yield
        finally:
            model.generation_config = own

    @contextmanager
    def _constant_gamma(self) -> Iterator[None]:
        """Fix the draft length, which transformers reads from the assistant's generation config."""
        if self._drafter is None or self._gamma is None:
            yield
            return
        model: Any = self._drafter.model
        own = model.generation_config
        model.generation_config = copy.deepcopy(own)
        model.generation_config.update(
            num_assistant_tokens=self._gamma,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=0.0,
        )
        try:
            yield
        finally:
            model.generation_config = own


def _beams_of(output: Any, num_given: int, stopping: Stopping) -> BeamGeneration:
    """Hypotheses of beam search, without the padding after an end-of-text token."""
    beams = []
    for sequence, score in zip(output.sequences[:, num_given:].tolist(), output.sequences_scores.tolist(), strict=True):
        ends = [place for place, token in enumerate(sequence, start=1) if token in stopping.eos_ids]
        tokens = sequence[: ends[0]] if ends else sequence
        beams.append(Hypothesis(tuple(tokens), score, bool(ends)))
    return BeamGeneration(tokens=[list(beams[0].tokens)], finish_reasons=[""], beams=[beams])
