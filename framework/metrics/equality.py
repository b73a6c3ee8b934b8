"""Equality of two greedy decodings in float32: they may diverge only at near-ties of the target's logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framework.core.sequences import Prompt
from framework.models.target import Target

TORN = 1e-4  # margin in logits below which two exact decodings may round to different tokens
MAX_SHARE = 1e-4  # largest share of all tokens at which decodings may diverge


@dataclass(frozen=True)
class Difference:
    """First difference between two decodings of a prompt.

    Attributes:
        row: index of the prompt.
        position: index among the new tokens.
        margin: the target's top-1 minus top-2 processed logit at the position, without KV cache; infinite where one
            decoding ends.
    """

    row: int
    position: int
    margin: float


@torch.no_grad()
def differences(
    target: Target,
    prompts: Sequence[Prompt],
    expected: list[list[int]],
    got: list[list[int]],
    *,
    eos_ids: tuple[int, ...] = (),
    max_new_tokens: int | None = None,
) -> list[Difference]:
    """First difference of every row that differs.

    Args:
        target: model that decoded the prompts.
        prompts: one per row.
        expected: new token ids per row.
        got: new token ids per row, of the other decoding.
        eos_ids: end-of-text tokens of the decodings, for the target's logits processors.
        max_new_tokens: token budget of the decodings, for the same; None: length of the longest row.
    """
    max_new_tokens = max_new_tokens or max(map(len, [*expected, *got, [0]]))
    found = []
    for row, (prompt, left, right) in enumerate(zip(prompts, expected, got, strict=True)):
        if left == right:
            continue
        same = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
        )
        margin = float("inf")
        if same < min(len(left), len(right)):
            new = torch.tensor([left[:same]], dtype=torch.int64, device=target.device)
            (logits,) = target.next_logits(prompt, new, eos_ids=eos_ids, max_new_tokens=max_new_tokens)
            top = logits.float().topk(2).values
            margin = float(top[0] - top[1])
        found.append(Difference(row=row, position=same, margin=margin))
    return found


def within_float32(found: list[Difference], num_tokens: int) -> bool:
    """Whether differences are at most one (or 1 in 10,000 tokens), each at a near-tie of the target's logits."""
    allowed = max(1, int(num_tokens * MAX_SHARE)) if found else 0
    return len(found) <= allowed and all(difference.margin < TORN for difference in found)
