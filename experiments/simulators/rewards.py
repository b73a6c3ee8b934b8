"""Rewards of texts, for rollouts of reinforcement learning."""


def comments(text: str) -> float:
    """Share of the lines of a text, blank ones aside, that are comments of Python."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return sum(line.startswith("#") for line in lines) / len(lines) if lines else 0.0


def short_lines(text: str) -> float:
    """Negative mean length of the lines of a text, in tens of characters."""
    lines = text.splitlines() or [""]
    return -sum(map(len, lines)) / len(lines) / 10
