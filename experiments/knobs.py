"""Whether a yaml's knobs suit their constructors, before anything is built: none missing, text where text is wanted."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import hydra
from omegaconf import DictConfig, OmegaConf

WORDS = {str: "text", bool: "true or false", NoneType: "null"}
NUMBERS = {int: "a whole number", float: "a number"}
GIVEN_LATER = ("target", "law", "shape")  # by whoever makes a drafter, or the rule that is usual for its drafts
PART = "a part with its _target_"


def check_knobs(node: DictConfig) -> None:
    """Look through a config node and those inside it.

    Numbers are left to the constructors, which know their ranges, but for parts that are made later, when it would be
    too late.

    Raises:
        ValueError: a knob has no value, or one of the wrong kind, or there is no such knob; the message names its key.
    """
    built, is_made_later = _built_by(node), bool(node.get("_partial_"))
    hints, known = _hints(built), _knobs(built, is_made_later=is_made_later)
    words = WORDS | NUMBERS if is_made_later else WORDS
    for name in map(str, node):
        key = node._get_full_key(name)
        if known is not None and name not in known and not name.startswith("_"):
            raise ValueError(f"{key} is unknown; allowed: {', '.join(known) or 'none'}")
        if OmegaConf.is_missing(node, name):
            raise ValueError(f"{key} has no value yet; set {key}=...")
        value = node[name]
        if isinstance(value, DictConfig) and "_target_" in value:
            check_knobs(value)
        else:
            check_kind(key, value, _alternatives(hints.get(name)), words)


def check_kind(key: str, value: object, kinds: Iterable[Any], words: Mapping[Any, str] = WORDS) -> None:
    """
    Raises:
        ValueError: the value is of no kind that is wanted; a kind without a word may be anything.
    """
    kinds = list(kinds)
    allowed = [PART if _is_part(kind) else words.get(kind) for kind in kinds]
    is_number = float in kinds and type(value) is int
    if None not in allowed and type(value) not in kinds and not is_number:
        raise ValueError(f"{key} is {value!r}; allowed: {', or '.join(map(str, allowed))}")


def _alternatives(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def _is_part(kind: Any) -> bool:
    """Whether a value of that kind is built from a node of its own: it has a contract, or is made later."""
    return getattr(kind, "_is_protocol", False) or get_origin(kind) is Callable


def _built_by(node: DictConfig) -> Any:
    """What builds a part: a class or a function; None where there is no such thing, which building it will say."""
    try:
        return hydra.utils.get_object(node["_target_"])
    except Exception:
        return None


def _hints(built: Any) -> dict[str, Any]:
    """The types of its arguments, as far as they can be told; one that is None by default may be None."""
    try:
        makes = inspect.getattr_static(built, "__init__") if isinstance(built, type) else built
        arguments = inspect.signature(makes).parameters
        may_be_none = {name for name in arguments if arguments[name].default is None}
        return {name: hint | None if name in may_be_none else hint for name, hint in get_type_hints(makes).items()}
    except Exception:
        return {}


def _knobs(built: Any, *, is_made_later: bool) -> list[str] | None:
    """The names of its arguments, but for what whoever makes it later gives it; None where it takes any, or is mute."""
    try:
        arguments = inspect.signature(built).parameters
    except (TypeError, ValueError):
        return None
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in arguments.values())
    given = GIVEN_LATER if is_made_later else ()
    return None if takes_any else [name for name in arguments if name not in given]
