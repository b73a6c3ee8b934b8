"""Static draft tree over token ranks, built once from the accuracy of every rank."""

from collections.abc import Sequence
from heapq import heappop, heappush

from framework.core.validation import check_whole

Path = tuple[int, ...]
"""Ranks from a child of pending down: (0, 2) is the third-best second token after the best first token."""


def best_paths(accuracies: Sequence[Sequence[float]], num_nodes: int) -> list[Path]:
    """Build a tree greedily: add the most probable node whose parent is in the tree, up to a budget (Medusa).

    A node's probability is the product of the accuracies on its path, as if depths were independent. No other tree of
    this size has a larger sum of these probabilities, which is its expected number of accepted nodes (Sequoia's
    objective).

    Args:
        accuracies: `[depth][rank]`: how often that token is correct; its sizes bound depth and ranks.
        num_nodes: node budget; the tree is smaller if it runs out of ranks.

    Returns:
        the path of every node, breadth-first and siblings by rank: the tree cut at any depth is a prefix.

    Raises:
        ValueError: num_nodes < 1.
    """
    check_whole("nodes", num_nodes, least=1)
    paths: list[Path] = []
    frontier: list[tuple[float, int, Path]] = [
        (-1.0, 0, ())
    ]  # negated value, depth and path: the highest value first, the shallower of equals
    while frontier and len(paths) <= num_nodes:
        value, depth, path = heappop(frontier)
        paths.append(path)
        if depth < len(accuracies):
            for rank, accuracy in enumerate(accuracies[depth]):
                heappush(frontier, (value * accuracy, depth + 1, (*path, rank)))
    return sorted(paths[1:], key=lambda path: (len(path), path))  # without the first path, pending itself


def parents_of(paths: Sequence[Path]) -> list[int]:
    """Index of every node's parent, -1 for a child of pending; the paths include all parents."""
    nodes = {path: node for node, path in enumerate(paths)}
    return [nodes.get(path[:-1], -1) for path in paths]


def expected_accepted(accuracies: Sequence[Sequence[float]], paths: Sequence[Path]) -> float:
    """Expected number of accepted nodes per round, if depths are independent."""
    total = 0.0
    for path in paths:
        value = 1.0
        for depth, rank in enumerate(path):
            value *= accuracies[depth][rank]
        total += value
    return total
