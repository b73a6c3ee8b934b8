"""Drafters that stand for all where every one would take long: KINDS, and FAST ones of them in the fast tests."""

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
# One that shares the target's pass, one on the host, one with a model: the fast tests of every drafter.
FAST = ("medusa", "prompt_lookup", "small_transformer")


def every_drafter(names: Iterable[str] = NAMES) -> list[Any]:
    """Parameters of a test: these drafters, marked as slow unless they are among FAST."""
    names = list(names)
    return mostly_slow(names, fast=[name for name in FAST if name in names])
