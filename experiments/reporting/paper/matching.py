"""Keys that match published rows with our records."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from experiments.results.record import Record

SIZES = ("small", "base", "large")
KINDS = ("unigram", "bigram", *SIZES)


class Key(NamedTuple):
    """Key that matches a published row with our records."""

    task: str
    temperature: float
    drafter: str


def key_of(record: Record) -> Key:
    paper = record.config["paper"]
    return Key(paper["task"], record.point["temperature"], paper["drafter"])


def by_key(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Records grouped by task, temperature and drafter."""
    return {key: list(group) for key, group in groupby(sorted(records, key=key_of), key_of)}


def by_setting(found: dict[Key, float], names: Sequence[str]) -> dict[tuple[str, float], dict[str, float]]:
    """Values by task and temperature, then by drafter in the order of `names`."""
    settings = sorted({(key.task, key.temperature) for key in found})
    return {
        setting: {name: found[Key(*setting, name)] for name in names if Key(*setting, name) in found}
        for setting in settings
    }
