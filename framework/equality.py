"""Are two greedy decodings the same? The float32 rule: they may part only where the target itself is torn."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framework.sequences import Prompt
from framework.target import Target

TORN = 1e-4  # logits; below this margin two exact paths may round to different tokens
MAX_SHARE = 1e-4  # of all tokens that may be such places


@dataclass(frozen=True)
class Difference:
    """Where two rows part for the first time.

    Attributes:
        row: index of the prompt.
        position: index among the new tokens.
        margin: the target's top-1 minus top-2 logit there, by an uncached pass; infinite where one row just ends.
    """

    row: int
    position: int
    margin: float


@torch.no_grad()
def differences(
    target: Target, prompts: Sequence[Prompt], expected: list[list[int]], got: list[list[int]]
) -> list[Difference]:
    """First difference of every row that differs; expected and got are token ids per row."""
    found = []
    for row, (prompt, left, right) in enumerate(zip(prompts, expected, got, strict=True)):
        if left == right:
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )
        margin = float("inf")
        if same < min(len(left), len(right)):
            logits = target.uncached(target.as_prompt(prompt) + left[:same])[-1]
            top = logits.float().topk(2).values
            margin = float(top[0] - top[1])
        found.append(Difference(row=row, position=same, margin=margin))
    return found


def within_float32(found: list[Difference], num_tokens: int) -> bool:
    """Whether differences are at most one (or 1 in 10,000 tokens), and each at a place where the target is torn."""
    allowed = max(1, int(num_tokens * MAX_SHARE)) if found else 0
    return len(found) <= allowed and all(difference.margin < TORN for difference in found)
