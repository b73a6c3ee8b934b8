"""Drafters that stand for all, where every one would take long; the others are then among the slow tests."""

from collections.abc import Iterable
from typing import Any

from experiments.proof.tiny_drafters import NAMES
from tests.support.slow_cases import mostly_slow

KINDS = (
    "eagle3",  # reads the target's states, and drafts from a part of the vocabulary
    "layer_skip",  # shares the target's cache
    "medusa",  # a tree of independent choices
    "ngram",  # draws on the host
    "online_small_transformer",  # learns
    "prompt_lookup",  # chooses on the host, or finds nothing
    "small_transformer",
    "transformer_tree",
)


def every_drafter(names: Iterable[str] = NAMES) -> list[Any]:
    """Parameters of a test: these drafters, and those that are none of KINDS marked as slow."""
    names = list(names)
    return mostly_slow(names, fast=[name for name in KINDS if name in names])
