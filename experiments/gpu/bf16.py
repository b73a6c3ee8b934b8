"""The step `bf16`: tokens of half precision that differ from Hugging Face's, and by how much."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from experiments.gpu.findings import Findings
from experiments.gpu.parts import embedded_target, library_prompts
from experiments.gpu.rounds import GAMMA, GREEDY
from experiments.peers.hugging_face import HuggingFaceGenerate
from framework.core.sampling import argmax
from framework.decoding.stopping import Stopping
from framework.models.target import Target

MANTISSA_BITS = 7  # of bfloat16


def run(findings: Findings, sizes: Mapping[str, Any], device: torch.device) -> None:
    texts = Texts(embedded_target(device, "bfloat16"), sizes["new_tokens"])
    for number, prompt in enumerate(library_prompts(texts.target, sizes["prompt_tokens"])):
        findings.attempt(f"text {number}", partial(texts.add, prompt))
    if not texts.num_tokens:
        return
    findings.note(margins=texts.margins, steps=texts.steps, tokens=texts.num_tokens)
    share = 100 * len(texts.margins) / texts.num_tokens
    findings.measure("share of tokens that differ from Hugging Face's", share, f"% of {texts.num_tokens}")
    findings.measure("largest margin of such a token", max(texts.margins, default=0.0), "in logits")
    findings.measure("largest margin of such a token, in steps of bfloat16", max(texts.steps, default=0.0))


class Texts:
    """Texts decoded by Hugging Face, read again in passes over five tokens, as a round reads them.

    Attributes:
        margins: for every token that is not the best one of such a pass, how far its logit is below the best.
        steps: the same in steps between neighbouring bfloat16 numbers at the best logit.
        num_tokens: tokens compared.
    """

    def __init__(self, target: Target, new_tokens: int):
        self.target = target
        self._stopping = Stopping(max_new_tokens=new_tokens)
        self.margins: list[float] = []
        self.steps: list[float] = []
        self.num_tokens = 0

    def add(self, prompt: list[int]) -> None:
        """Decode one text, and compare its tokens."""
        decoder = HuggingFaceGenerate(target=self.target, sampling=GREEDY)
        (new,) = decoder.generate([prompt], stopping=self._stopping, seeds=[0]).tokens
        logits, chosen = self._logits(prompt, new), torch.tensor(new, device=self.target.device)
        best = argmax(logits)
        tops = logits.gather(1, best.unsqueeze(1)).squeeze(1)
        margins = tops - logits.gather(1, chosen.unsqueeze(1)).squeeze(1)
        for top, margin in zip(tops[best != chosen].tolist(), margins[best != chosen].tolist(), strict=True):
            self.margins.append(margin)
            self.steps.append(margin / 2.0 ** (math.floor(math.log2(abs(top) or 1)) - MANTISSA_BITS))
        self.num_tokens += len(new)

    def _logits(self, prompt: list[int], new: list[int]) -> torch.Tensor:
        """[T, V] float32 logits before every new token."""
        model, device = self.target.model, self.target.device
        text = torch.tensor([prompt + new], device=device)
        model.begin(1, text.shape[1] + GAMMA + 1)
        first = len(prompt) - 1  # the position before the first new token
        if first:
            model.forward(text[:, :first], None, visible=first)
        rows = []
        for start in range(first, text.shape[1] - 1, GAMMA + 1):
            fed = text[:, start : min(start + GAMMA + 1, text.shape[1] - 1)]
            at = torch.tensor([start], device=device)
            rows.append(model.forward(fed, at, visible=start + fed.shape[1]).logits[0].float())
        return torch.cat(rows)
