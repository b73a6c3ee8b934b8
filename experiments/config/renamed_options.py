"""Options and choices of earlier versions, mapped to their current names."""

import re
from collections.abc import Iterable
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.config.moved_modules import with_current_targets

# former yaml key -> current key; * is any name
KEYS = {
    "prompts.first_tokens": "prompts.max_prompt_tokens",
    "held_out.first_tokens": "held_out.max_prompt_tokens",
    "prompts.too_long": "prompts.overflow",
    "held_out.too_long": "held_out.overflow",
    "drafter.every": "drafter.update_interval",
    "drafters.*.every": "drafters.*.update_interval",
    "later_turns": "multi_turn",
    "against": "compare_to",
    "over": "search_space",
    "unpruned": "startup_trials",
    "laws": "formats",
    "vary.over": "vary.values",
}
# (group, former choice) -> current choice
CHOICES = {
    ("drafter", "parallel"): "dart",
    ("training", "parallel"): "dart",
    ("study", "parallel"): "dart",
    ("gamma", "additive"): "heuristic",
    ("gamma", "best_expected_speed"): "expected_speedup",
    ("verifier", "standard"): "default",
}
# (yaml key, former value) -> current value
VALUES = {("objective", "attainable"): "zero_overhead"}


def check_arguments(arguments: Iterable[str]) -> None:
    """
    Raises:
        ValueError: a command-line argument uses a renamed option or choice.
    """
    for argument in arguments:
        key, given, value = argument.lstrip("+~").partition("=")
        if new := current_key(key):
            old, now = _changed(key, new)
            raise ValueError(f"{old} is called {now} now; set {new}{given}{value}")
        group = key.split("@")[0]
        for choice in value.strip("[]").split(","):
            if today := CHOICES.get((group, choice)):
                raise ValueError(f"{group}={choice} is called {group}={today} now; set {key}={today}")
            if today := VALUES.get((key, choice)):
                raise ValueError(f"{key}={choice} is called {key}={today} now; set {key}={today}")


def check_config(cfg: DictConfig) -> None:
    """
    Raises:
        ValueError: a yaml uses a renamed option.
    """
    for key in _keys(OmegaConf.to_container(cfg, resolve=False)):
        if new := current_key(key):
            old, now = _changed(key, new)
            raise ValueError(f"{old} is called {now} now; rename it in the yaml")


def current_key(key: str) -> str | None:
    """Return the current key of a renamed option, or of an option nested in it.

    It is None if the key has not changed.
    """
    for old, new in KEYS.items():
        pattern = re.escape(old).replace(r"\*", r"([^.]+)")
        if found := re.match(rf"{pattern}(?=\.|$)", key):
            return (new.replace("*", found[1]) if found.groups() else new) + key[found.end() :]
    return None


def with_current_options(made_of: Any) -> Any:
    """Update the stored config of a checkpoint or search to current options, values and `_target_` paths."""
    return with_current_targets(_current("", made_of))


def _current(path: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_current(path, item) for item in value]
    if not isinstance(value, dict):
        return VALUES.get((path, value), value) if isinstance(value, str) else value
    found = {}
    for key, item in value.items():
        inside = f"{path}.{key}" if path else str(key)
        new = current_key(f"training.{inside}" if path == "trainable" else inside)
        found[new.rsplit(".", 1)[-1] if new else key] = _current(inside, item)
    return found


def _keys(value: Any, path: str = "") -> Iterable[str]:
    """Dotted keys of a plain config."""
    for key, item in value.items() if isinstance(value, dict) else ():
        inside = f"{path}.{key}" if path else str(key)
        yield inside
        yield from _keys(item, inside)


def _changed(key: str, new: str) -> tuple[str, str]:
    """Both keys without their common suffix."""
    old, now = key.split("."), new.split(".")
    while len(old) > 1 and len(now) > 1 and old[-1] == now[-1]:
        old, now = old[:-1], now[:-1]
    return ".".join(old), ".".join(now)
