"""Whether a yaml's knobs suit their constructors, before anything is built: none missing, text where text is wanted."""

import inspect
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import hydra
from omegaconf import DictConfig, OmegaConf

WORDS = {str: "text", bool: "true or false", NoneType: "null"}
PART = "a part with its _target_"


def check_knobs(node: DictConfig) -> None:
    """Look through a config node and those inside it; numbers are left to the constructors, which know their ranges.

    Raises:
        ValueError: a knob has no value, or one of the wrong kind; the message names its yaml key.
    """
    hints = _hints(node)
    for name in map(str, node):
        key = node._get_full_key(name)
        if OmegaConf.is_missing(node, name):
            raise ValueError(f"{key} has no value yet; set {key}=...")
        value = node[name]
        if isinstance(value, DictConfig) and "_target_" in value:
            check_knobs(value)
        else:
            check_kind(key, value, _alternatives(hints.get(name)))


def check_kind(key: str, value: object, kinds: Iterable[Any]) -> None:
    """
    Raises:
        ValueError: the value is of no kind that is wanted; a kind without a word here may be anything.
    """
    kinds = list(kinds)
    words = [PART if _is_part(kind) else WORDS.get(kind) for kind in kinds]
    if None not in words and type(value) not in kinds:
        raise ValueError(f"{key} is {value!r}; allowed: {', or '.join(map(str, words))}")


def check_whole(key: str, value: object, *, least: int, most: int, or_null: bool = False) -> None:
    """
    Raises:
        ValueError: the value is no whole number in that range, nor null where null is allowed.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if not is_whole and not (or_null and value is None):
        allowed = f"a whole number from {least} to {most}" + (", or null" if or_null else "")
        raise ValueError(f"{key} is {value!r}; allowed: {allowed}")


def _alternatives(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def _is_part(kind: Any) -> bool:
    """Whether a value of that kind is built from a node of its own: it has a contract, or is made later."""
    return getattr(kind, "_is_protocol", False) or get_origin(kind) is Callable


def _hints(node: DictConfig) -> dict[str, Any]:
    """The types of a constructor's arguments; none where there is no such class, which building it will say."""
    try:
        built = hydra.utils.get_object(node["_target_"])
        return get_type_hints(inspect.getattr_static(built, "__init__") if isinstance(built, type) else built)
    except Exception:
        return {}
