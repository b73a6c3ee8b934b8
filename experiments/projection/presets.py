"""Presets of hardware, models and measured passes: a yaml each in conf/presets, or a file of the user's own."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from experiments.config.help_text import CONF
from experiments.config.parsed_overrides import wrong_choice
from framework.core.option_error import MissingFileError, OptionError, UnreadableError

PRESETS = CONF / "presets"
OTHERS = {"hardware": "a yaml of that form, or this_machine", "models": "a yaml of that form, or a model's folder"}


def names(kind: str) -> list[str]:
    """Names of the presets of a kind: a folder of conf/presets."""
    return sorted(path.stem for path in (PRESETS / kind).glob("*.yaml"))


def read_preset(kind: str, key: str, given: object) -> dict[str, Any]:
    """Read a preset by its name, or a yaml of the same form by its path.

    Args:
        kind: folder of conf/presets.
        key: yaml key of the choice, for errors.
        given: a name, or a path that ends with .yaml.

    Raises:
        ValueError, OSError: there is no such preset, or the file is not a mapping.
    """
    others = OTHERS.get(kind, "none else")
    if not isinstance(given, str):
        raise OptionError(key, given, f"{', '.join(names(kind))}; {others}")
    is_own = given.endswith((".yaml", ".yml"))
    if not is_own and given not in names(kind):
        raise ValueError(f"{wrong_choice(key, given, names(kind))}; {others}")
    path = Path(given) if is_own else PRESETS / kind / f"{given}.yaml"
    if not path.is_file():
        raise MissingFileError(key, given, "a yaml such as those in conf/presets", "no such file")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnreadableError(key, given, "a yaml such as those in conf/presets", str(error).splitlines()[0]) from None
    if not isinstance(content, dict):
        raise OptionError(key, given, "a yaml such as those in conf/presets", "which is no mapping")
    return content


def check_above_zero(key: str, value: object) -> None:
    """
    Raises:
        ValueError: the value is no finite number above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise OptionError(key, value, "a number > 0")


def check_keys(key: str, content: Mapping[str, Any], needed: Collection[str], optional: Collection[str]) -> None:
    """
    Raises:
        ValueError: a preset lacks a key, or has another one.
    """
    known = [*needed, *optional]
    for name in content:
        if name not in known:
            raise ValueError(f"{wrong_choice(f'a key of {key}', str(name), known)}")
    for name in needed:
        if name not in content:
            raise ValueError(f"{key} lacks {name}; a yaml of this kind needs {', '.join(needed)}")
