"""Every drafter that has a yaml, built around a tiny target, so that tests and proofs take seconds."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.assemble import DrafterFactory, build
from framework.tiny_models import save_tiny

FOLDER = Path(__file__).parents[1] / "conf" / "drafter"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def tiny_factory(name: str, vocabulary: int) -> DrafterFactory:
    """The factory that a drafter's yaml describes, for tiny targets of that vocabulary."""
    node = OmegaConf.load(FOLDER / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    return tiny_factory_of(node, vocabulary)


def tiny_factory_of(node: DictConfig, vocabulary: int) -> DrafterFactory:
    """The same from a config node: embedded models and the standard library are replaced by tiny ones."""
    settings = OmegaConf.to_container(node, resolve=False)
    root = {"target": {"dtype": "float32", "attention": "sdpa"}, "drafter": _made_tiny(settings, vocabulary)}
    return build(OmegaConf.create(root).drafter)


def _made_tiny(value: Any, vocabulary: int) -> Any:
    if isinstance(value, str) and value.startswith("${zoo:"):
        return _tiny_folder(value.removeprefix("${zoo:").removesuffix("}"), vocabulary)
    if not isinstance(value, dict):
        return value
    made = {key: _made_tiny(item, vocabulary) for key, item in value.items()}
    if str(made.get("_target_")).endswith("StandardLibrary"):
        made["folder"] = _tiny_library()
    return made


@cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="outrider-tiny-"))


@cache
def _tiny_folder(name: str, vocabulary: int) -> str:
    return str(save_tiny(_temporary() / f"{name}-{vocabulary}", vocabulary=vocabulary, seed=len(name)))


@cache
def _tiny_library() -> str:
    """A standard library of three files; its words use the first letters, so that tiny vocabularies see them too."""
    folder = _temporary() / "library"
    folder.mkdir()
    for number, name in enumerate(("argparse", "cabaa", "bacca")):
        words = [f"ab ca{'b' * (i % 3)} a{'c' * (i % number if number else 1)} def x return\n" for i in range(200)]
        (folder / f"{name}.py").write_text("".join(words))
    return str(folder)
