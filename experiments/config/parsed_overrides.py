"""Parsed overrides, and the keys of the configs that they set."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

PLAIN = re.compile(r"[\w./:-]+")  # a value that needs no quotes
FREE_NAMES = ("drafters", "search_space", "hydra")  # mappings whose keys a user chooses
OWN_PARTS = ("framework.", "drafters.", "experiments.")


class OverrideError(ValueError):
    """A mistake in a command-line override; the message states the key to change."""


def parsed(line: str) -> Override:
    key, given, _ = line.lstrip("+~").partition("=")
    if not key.strip("@") or not (given or line.startswith("~")):
        raise OverrideError(f"{line!r} is no KEY=VALUE")
    try:
        return OverridesParser.create().parse_override(line)
    except HydraException:
        raise OverrideError(f"{line!r} cannot be parsed; quote its value: \"{line.partition('=')[0]}='...'\"") from None


def values_of(override: Override) -> list[Any]:
    """The values of a sweep, the items of a list, or the only value."""
    value = override.value()
    if override.is_choice_sweep():
        value = value.list  # type: ignore[union-attr]
    elif override.is_sweep_override():
        return []
    return (
        [getattr(item, "text", item) for item in value] if isinstance(value, list) else [getattr(value, "text", value)]
    )


def as_swept(override: Override, plain: DictConfig, chosen: DictConfig) -> str:
    """The override as text; as a sweep of one value if only a part that the sweep selects has the option.

    Hydra applies single values before it selects the parts of a point.
    """
    line, key = str(override.input_line), key_of(override)
    if override.is_sweep_override() or line[0] in "+~" or has_key(plain, key) or not has_key(chosen, key):
        return line
    return f"{key}=choice({line.partition('=')[2]})"


def first_value(override: Override) -> str:
    """The override as text, with the first value of a sweep."""
    if not override.is_sweep_override():
        return str(override.input_line)
    sweep = override.value()
    prefix = str(override.input_line).partition("=")[0]
    if isinstance(sweep, IntervalSweep | RangeSweep):
        return f"{prefix}={sweep.start}"
    return f"{prefix}={next(override.sweep_string_iterator())}"


def key_of(override: Override) -> str:
    """Key or group with its package, without + or ~."""
    return override.get_key_element().lstrip("+~")


def are_numbers(override: Override) -> bool:
    """Whether all values of an override are numbers."""
    values = values_of(override)
    plain = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return isinstance(override.value(), IntervalSweep | RangeSweep) or (bool(values) and plain)


def wrong_choice(group: str, value: str, choices: Sequence[str]) -> str:
    """Error message of a value that is none of the choices."""
    near = get_close_matches(value, choices, 1)
    return f"{group} is {value!r}; {f'did you mean {near[0]}? ' if near else ''}allowed: {', '.join(choices)}"


def quoted_path(path: str) -> str:
    """A path as the value of an override, quoted if necessary."""
    return path if PLAIN.fullmatch(path) else quoted(path)


def quoted(text: str) -> str:
    # In Hydra's quotes a backslash is literal, except before a quote or at the end.
    return "'" + re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), text) + "'"


def has_key(config: DictConfig, key: str) -> bool:
    """Whether a config has a dotted key; null and ??? are values."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent, throw_on_missing=False) if parent else config
    if OmegaConf.is_list(node):
        return name.isdecimal() and int(name) < len(node)
    return OmegaConf.is_dict(node) and name in list(node)


def takes_more(config: DictConfig, key: str) -> bool:
    """Whether + may add a key: to a mapping of free names, or to a part, whose constructor checks its options."""
    names = key.split(".")
    for end in range(len(names) - 1, 0, -1):
        if has_key(config, ".".join(names[:end])):
            node = OmegaConf.select(config, ".".join(names[:end]), throw_on_missing=False)
            if OmegaConf.is_dict(node) and "_target_" in node:
                return not _is_misspelt(names[end], node)
            break
    return names[0] in FREE_NAMES and len(names) > 1 and has_key(config, names[0])


def _is_misspelt(name: str, node: DictConfig) -> bool:
    """Whether a part of this project, whose yaml spells each option, has an option or key of Hydra with a near name."""
    known = [str(each) for each in node if str(each) != name] + ["_target_", "_partial_"]
    ours = str(node.get("_target_")).startswith(OWN_PARTS)
    return (ours or name.startswith("_")) and bool(get_close_matches(name, known, 1, cutoff=0.8))


def keys_of(value: Any, path: str = "") -> Iterator[str]:
    """Dotted keys of a plain config."""
    for key, item in value.items() if isinstance(value, dict) else ():
        inside = f"{path}.{key}" if path else str(key)
        yield inside
        yield from keys_of(item, inside)


def near_keys(key: str, known: Sequence[str]) -> list[str]:
    """Known keys that resemble a key: as a whole, by its last name, or with a similar last name."""
    by_last: dict[str, list[str]] = {}
    for each in known:
        by_last.setdefault(each.rpartition(".")[2], []).append(each)
    last = key.rpartition(".")[2]
    group, nested, _ = key.partition(".")
    others = [name for match in get_close_matches(last, list(by_last), 1, cutoff=0.7) for name in by_last[match]]
    similar = [name for name in others if not nested or name.partition(".")[0] == group]
    return get_close_matches(key, known, 1, cutoff=0.8) or by_last.get(last, [])[:3] or similar[:1]
