"""What was decoded, token by token, as the page shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.page.points import Point

MOST_TOKENS = 60_000  # on a page: some 3 MB


@dataclass(frozen=True)
class TokenView:
    """Prompts of points, each with its tokens; what of them had no room is left out, the later prompts first.

    Attributes:
        points: name in a list of choices, drafter, and an entry per prompt.
        num_left_out: prompts.
    """

    points: list[dict[str, Any]]
    num_left_out: int


def token_view(points: Sequence[Point]) -> TokenView:
    """Of points whose records hold tokens."""
    traced = {
        index: [row for row in point.record.get("prompts", []) if row.get("tokens")]
        for index, point in enumerate(points)
    }
    room, taken = MOST_TOKENS, {index: 0 for index, rows in traced.items() if rows}
    for turn in range(max(map(len, traced.values()), default=0)):  # a prompt of every point, then the next one's
        for index in taken:
            if turn < len(traced[index]) and room > 0:
                taken[index] += 1
                room -= len(traced[index][turn]["tokens"])
    shown = [
        {
            "name": f"{points[index].label}, {points[index].group}",
            "prompts": [
                {"name": row.get("name"), "tokens": [_short(token) for token in row["tokens"]]}
                for row in traced[index][:number]
            ],
        }
        for index, number in taken.items()
        if number
    ]
    return TokenView(shown, sum(len(traced[index]) - number for index, number in taken.items()))


def _short(token: dict[str, Any]) -> list[Any]:
    """Text, producer, p, q, and text, p and q of what it replaced."""
    drafted = token.get("instead_of") or {}
    lost = [[drafted["text"], drafted["p"], drafted["q"]]] if drafted else []
    return [token["text"], token["producer"], token["p"], token["q"], *lost]
