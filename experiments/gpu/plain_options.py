"""Settings of the acceptance without Hydra: the command's yaml, and KEY=VALUE arguments."""

import re
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from os import environ
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
NEEDED = ("torch", "transformers", "safetensors", "numpy", "yaml")
OF_HYDRA = ("hydra", "omegaconf", "rich")
REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def missing(packages: Sequence[str]) -> list[str]:
    """Packages that this Python lacks."""
    return [name for name in packages if find_spec(name) is None]


def run_plainly(arguments: Sequence[str]) -> int:
    """Run the acceptance; returns the exit status. An error in the arguments is one line."""
    if lacking := missing(NEEDED):
        print(f"{sys.executable} lacks {', '.join(lacking)}; needed: {', '.join(NEEDED)}", file=sys.stderr)
        return 1
    from experiments.gpu.all_steps import accept  # imports torch, which the check above has found

    try:
        settings = settings_from(arguments)
        return accept(
            settings, folder_of(settings, Path("outputs/gpu_acceptance") / f"{datetime.now():%Y-%m-%d_%H-%M-%S}")
        )
    except (ValueError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1


def folder_of(settings: dict[str, Any], default: Path) -> Path:
    """Folder of the results: the setting `out`, else the environment's OUT, else a default."""
    return Path(settings["out"] or environ.get("OUT") or default)


def settings_from(arguments: Sequence[str]) -> dict[str, Any]:
    """The values of conf/gpu_acceptance.yaml, changed by KEY=VALUE; a key may be dotted.

    Raises:
        ValueError: an argument is no KEY=VALUE, or the key is unknown.
    """
    import yaml

    settings = yaml.safe_load((CONF / "gpu_acceptance.yaml").read_text(encoding="utf-8"))
    for key in ("defaults", "hydra"):
        del settings[key]
    for argument in arguments:
        key, given, value = argument.partition("=")
        if not given:
            raise ValueError(f"{argument!r} is no KEY=VALUE; allowed: {', '.join(settings)}")
        *path, name = key.split(".")
        node: Any = settings
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or name not in node:
            raise ValueError(
                f"{key} is no option of gpu_acceptance; allowed: {', '.join(settings)}, and keys below them"
            )
        node[name] = yaml.safe_load(value)
    return _resolved(settings, settings)


def _resolved(node: Any, settings: dict[str, Any]) -> Any:
    """A node with references such as ${full.speed} replaced by what they name."""
    if isinstance(node, dict):
        return {key: _resolved(value, settings) for key, value in node.items()}
    if not (isinstance(node, str) and (found := REFERENCE.fullmatch(node))):
        return node
    value: Any = settings
    for key in found[1].split("."):
        value = value[key]
    return _resolved(value, settings)
