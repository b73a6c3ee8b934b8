"""Shared code of trainings that predict several future tokens: labels, checks, accuracies by rank.

B rows, T tokens, K future tokens that a position predicts, R ranks, V vocabulary.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from framework.core.option_error import OptionError
from framework.models.target import Target
from framework.training.trainable import is_learned, texts_of

WINDOWS_AT_ONCE = 8  # batch size of evaluation
NO_LABEL = -100  # default ignore_index of cross-entropy


def check_ranges(target: Target, *, discount: float, ranks: int) -> None:
    """Check the options `discount` and `ranks`.

    Raises:
        OptionError: discount is outside (0, 1], or ranks is outside 1 to V.
    """
    most = target.vocabulary_size
    for key, holds, value, allowed in (
        ("discount", 0 < discount <= 1, discount, "a number in (0, 1]"),
        ("ranks", 1 <= ranks <= most, ranks, f"1 to the size of the target's vocabulary, {most}"),
    ):
        if not holds:
            raise OptionError(key, value, allowed)


def check_window(tokens: Tensor, number: int, key: str) -> None:
    """Check the length of windows; pairs are not checked.

    Args:
        tokens: [B, T] int64 windows, or [B, 2, T] pairs.
        number: K.
        key: option that sets K.

    Raises:
        OptionError: T < K + 2, so that some future token has no label.
    """
    if tokens.dim() == 2 and tokens.shape[-1] < number + 2:
        raise OptionError("window", tokens.shape[-1], f"at least {number + 2}, two more than trainable.{key}")


@torch.no_grad()
def accuracies_by_rank(
    logits_of: Callable[[Tensor], Tensor], tokens: Tensor, *, number: int, ranks: int
) -> list[list[float]]:
    """`[K][R]`: how often the token of each rank is correct, over all positions of windows [n, T] int64.

    Args:
        logits_of: computes the logits [B, T - 2, K, V] of some windows.
        tokens: the windows.
        number: K.
        ranks: R.
    """
    hits = torch.zeros(number, ranks, device=tokens.device)
    for windows in tokens.split(WINDOWS_AT_ONCE):
        ranked = logits_of(windows).topk(ranks).indices
        hits += (ranked == labels_after(windows, number).unsqueeze(3)).sum((0, 1))
    num_known = (labels_after(tokens, number) != NO_LABEL).sum((0, 1))
    return (hits / num_known.unsqueeze(1)).tolist()


def top_accuracies(accuracies: list[list[float]], name: str) -> dict[str, float]:
    """Top-1 and top-R accuracy of every future token, with keys such as "`name` 1 top-1"."""
    found = {}
    for number, by_rank in enumerate(accuracies, start=1):
        found[f"{name} {number} top-1"] = by_rank[0]
        found[f"{name} {number} top-{len(by_rank)}"] = sum(by_rank)
    return found


def labels_after(tokens: Tensor, number: int) -> Tensor:
    """[B, T - 2, number] int64: tokens t + 2, t + 3, ... for position t; NO_LABEL for those not learned.

    Args:
        tokens: [B, T] windows, or [B, 2, T] pairs, int64.
        number: labels per position.
    """
    text = texts_of(tokens)
    padded = functional.pad(text.masked_fill(~is_learned(text), NO_LABEL), (0, number), value=NO_LABEL)
    return padded.unfold(1, number, 1)[:, 2:-1]
