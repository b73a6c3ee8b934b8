"""Hugging Face's own `generate`, behind the same interface: what the yardstick is checked against."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from framework.beam_search import BeamGeneration
from framework.cached_lm import CachedLM
from framework.generation import Generation
from framework.hypotheses import Hypothesis
from framework.sampling import Sampling
from framework.sequences import Conditioned, Prompt, text_of
from framework.stopping import Stopping
from framework.stopwatch import Stopwatch
from framework.target import Target


class HuggingFaceGenerate:
    """Decoding by transformers, on the same model objects; one prompt at a time. Plain, unless told what drafts."""

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
            drafter: a small model that drafts.
            gamma: how many tokens it drafts in every round; None leaves that to transformers' own defaults.
            copied_tokens: how many tokens a round copies from the text (prompt lookup).
            beams: num_beams (at least 2), length_penalty and early_stopping of beam search, at temperature 0.
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
        """Decode a batch of one prompt; its seed does not give the yardstick's tokens above temperature 0.

        Raises:
            ValueError: more than one prompt; ragged batches need padding, which would be another measurement.
        """
        if len(prompts) != 1:
            raise ValueError(f"Hugging Face generate is measured one prompt at a time; got {len(prompts)}")
        knobs: dict[str, Any] = {"do_sample": False}
        if not self.sampling.greedy:
            knobs = {
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
            knobs["decoder_input_ids"] = torch.tensor([text], device=self.target.device)
        model = self.target.model.model
        with self._constant_gamma(), ExitStack() as prefill:
            prefill.enter_context(stopwatch.stage("prefill"))
            # Not a logits processor: what drafts is given these as well, and comes first.
            hook = model.register_forward_hook(lambda *_: prefill.close())
            prefill.callback(hook.remove)
            output = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=stopping.max_new_tokens,
                eos_token_id=list(stopping.eos_ids) or None,
                pad_token_id=stopping.eos_ids[0] if stopping.eos_ids else 0,
                # not what the model's own generation config would have
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                min_length=0,
                forced_eos_token_id=None,
                bad_words_ids=None,
                **knobs,
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
    def _constant_gamma(self) -> Iterator[None]:
        """transformers takes the draft's length from the small model's own generation config."""
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
    """What beam search found, without the filling behind an end-of-text token."""
    beams = []
    for sequence, score in zip(output.sequences[:, num_given:].tolist(), output.sequences_scores.tolist(), strict=True):
        ends = [place for place, token in enumerate(sequence, start=1) if token in stopping.eos_ids]
        tokens = sequence[: ends[0]] if ends else sequence
        beams.append(Hypothesis(tuple(tokens), score, bool(ends)))
    return BeamGeneration(tokens=[list(beams[0].tokens)], finish_reasons=[""], beams=[beams])
