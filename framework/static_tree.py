"""A tree of ranks that is the same in every round, built once from how often every rank was right."""

from collections.abc import Sequence
from heapq import heappop, heappush

from framework.whole_numbers import check_whole

Path = tuple[int, ...]
"""Ranks from a child of pending down: (0, 2) holds the third-best second token behind the best first one."""


def best_paths(accuracies: Sequence[Sequence[float]], num_nodes: int) -> list[Path]:
    """The nodes that are most likely right: again and again the likeliest one whose parent is in the tree (Medusa).

    A node is taken to be right as often as all ranks on its path are, each by itself. No other tree of so many nodes
    has a larger sum of these, which is the number of nodes it is expected to have accepted (Sequoia's objective).

    Args:
        accuracies: [depth][rank] how often that token is the right one; its sizes bound depth and ranks.
        num_nodes: budget; a tree that runs out of ranks has fewer.

    Returns:
        the path of every node, breadth-first and siblings by rank: the first nodes are the tree of any smaller depth.

    Raises:
        ValueError: no node may be spent.
    """
    check_whole("drafter.nodes", num_nodes, least=1)
    paths: list[Path] = []
    frontier: list[tuple[float, int, Path]] = [
        (-1.0, 0, ())
    ]  # value, depth and path, the most valuable first and the shallower of equals
    while frontier and len(paths) <= num_nodes:
        value, depth, path = heappop(frontier)
        paths.append(path)
        if depth < len(accuracies):
            for rank, accuracy in enumerate(accuracies[depth]):
                heappush(frontier, (value * accuracy, depth + 1, (*path, rank)))
    return sorted(paths[1:], key=lambda path: (len(path), path))  # the first one is pending itself


def parents_of(paths: Sequence[Path]) -> list[int]:
    """The parent of every node, -1 for a child of pending; parents are among the paths."""
    nodes = {path: node for node, path in enumerate(paths)}
    return [nodes.get(path[:-1], -1) for path in paths]


def expected_accepted(accuracies: Sequence[Sequence[float]], paths: Sequence[Path]) -> float:
    """How many nodes of a round are expected to be kept, each depth being right or not by itself."""
    total = 0.0
    for path in paths:
        value = 1.0
        for depth, rank in enumerate(path):
            value *= accuracies[depth][rank]
        total += value
    return total
