"""Checks of a yaml's options against the constructors' signatures, before anything is built."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

from experiments.config.moved_modules import check_current
from framework.core.option_error import OptionError

WORDS = {str: "text", bool: "true or false", NoneType: "null"}
NUMBERS = {int: "a whole number", float: "a number"}
GIVEN_LATER = ("target", "scheme", "shape")  # passed when a drafter or the default verifier is built from its partial
PART = "a part with its _target_"


def check_options(node: DictConfig) -> None:
    """Check a config node and its nested nodes.

    Numbers are checked by the constructors, which know the ranges. Only for partial nodes, which are constructed
    later, this function checks that a number is given.

    Raises:
        ValueError: an option is unknown, has no value or one of the wrong type, or a class has moved or
            cannot be imported; the message names the key.
    """
    check_current(node)
    built, is_made_later = _built_by(node), bool(node.get("_partial_"))
    hints, known = _hints(built), _options(built, is_made_later=is_made_later)
    words = WORDS | NUMBERS if is_made_later else WORDS
    for name in map(str, node):
        key = node._get_full_key(name)
        if known is not None and name not in known and not name.startswith("_"):
            raise ValueError(f"{key} is unknown; allowed: {', '.join(known) or 'none'}")
        if OmegaConf.is_missing(node, name):
            raise ValueError(f"{key} has no value yet; set {key}=...")
        value = node[name]
        if isinstance(value, DictConfig) and "_target_" in value:
            check_options(value)
        else:
            check_kind(key, value, _alternatives(hints.get(name)), words)


def check_kind(key: str, value: object, kinds: Iterable[Any], words: Mapping[Any, str] = WORDS) -> None:
    """
    Raises:
        OptionError: the value has none of the allowed types; a type that is not in `words` allows any value.
    """
    kinds = list(kinds)
    allowed = [PART if _is_part(kind) else words.get(kind) for kind in kinds]
    is_number = float in kinds and type(value) is int
    if None not in allowed and type(value) not in kinds and not is_number:
        raise OptionError(key, value, ", or ".join(map(str, allowed)))


def _alternatives(hint: Any) -> Iterable[Any]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]


def _is_part(kind: Any) -> bool:
    """Whether a type is built from a config node of its own: a protocol or a callable (partial)."""
    return getattr(kind, "_is_protocol", False) or get_origin(kind) is Callable


def _built_by(node: DictConfig) -> Any:
    """Class or function that a node's `_target_` names; None without one.

    Raises:
        ValueError: it cannot be imported.
    """
    path = node.get("_target_")
    if not isinstance(path, str):
        return None
    try:
        return resolve_name(path)
    except Exception as error:  # an import runs a user's module, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{node._get_full_key('_target_')} is {path!r}, which cannot be imported ({reason}); allowed: the dotted "
            "path of a class or function"
        ) from error


def _hints(built: Any) -> dict[str, Any]:
    """Argument types as far as they are annotated; an argument with the default None also allows None."""
    try:
        makes = inspect.getattr_static(built, "__init__") if isinstance(built, type) else built
        arguments = inspect.signature(makes).parameters
        may_be_none = {name for name in arguments if arguments[name].default is None}
        return {name: hint | None if name in may_be_none else hint for name, hint in get_type_hints(makes).items()}
    except Exception:
        return {}


def _options(built: Any, *, is_made_later: bool) -> list[str] | None:
    """Argument names that a yaml may set.

    It is None if there is no signature or it takes any keyword.
    """
    try:
        arguments = inspect.signature(built).parameters
    except (TypeError, ValueError):
        return None
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in arguments.values())
    given = GIVEN_LATER if is_made_later else ()
    return None if takes_any else [name for name in arguments if name not in given]
