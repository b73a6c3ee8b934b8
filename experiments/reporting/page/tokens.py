"""Decoded tokens with their producers, prepared for the page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.reporting.page.points import Point

MOST_TOKENS = 60_000  # per page, about 3 MB


@dataclass(frozen=True)
class TokenView:
    """Traced tokens of points by prompt, up to MOST_TOKENS; later prompts are left out first.

    Attributes:
        points: name of each point, and its prompts with name, tokens, and index of the text; None: not recorded.
        prompts: distinct texts of the prompts.
        num_left_out: number of prompts left out.
    """

    points: list[dict[str, Any]]
    prompts: list[str]
    num_left_out: int


def token_view(points: Sequence[Point]) -> TokenView:
    """Token view of the points whose records hold tokens."""
    traced = {index: [row for row in point.record.prompts if row.get("tokens")] for index, point in enumerate(points)}
    room, taken = MOST_TOKENS, {index: 0 for index, rows in traced.items() if rows}
    for turn in range(max(map(len, traced.values()), default=0)):  # round-robin: one prompt per point and turn
        for index in taken:
            if turn < len(traced[index]) and room > 0:
                taken[index] += 1
                room -= len(traced[index][turn]["tokens"])
    texts: dict[str, int] = {}
    shown = [
        {
            "name": f"{points[index].label}, {points[index].group}",
            "prompts": [
                {
                    "name": row.get("name"),
                    "prompt": texts.setdefault(row["prompt_text"], len(texts)) if row.get("prompt_text") else None,
                    "tokens": [_short(token) for token in row["tokens"]],
                }
                for row in traced[index][:number]
            ],
        }
        for index, number in taken.items()
        if number
    ]
    return TokenView(shown, list(texts), sum(len(traced[index]) - number for index, number in taken.items()))


def _short(token: dict[str, Any]) -> list[Any]:
    """Text, producer, p and q; of a replaced token also [text, p, q] of the drafted one."""
    drafted = token.get("instead_of") or {}
    lost = [[drafted["text"], drafted["p"], drafted["q"]]] if drafted else []
    return [token["text"], token["producer"], token["p"], token["q"], *lost]
