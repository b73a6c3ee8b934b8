"""Every drafter that has a yaml, built around a tiny target: adding a yaml adds its tests."""

import tempfile
from functools import cache
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tiny_models import save_tiny

from framework.drafter import Drafter
from framework.target import Target

FOLDER = Path(__file__).parents[1] / "conf" / "drafter"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def build_drafter(name: str, target: Target) -> Drafter:
    """Build a drafter from its yaml; embedded models and the standard library are replaced by tiny ones."""
    return build_from(OmegaConf.load(FOLDER / f"{name}.yaml"), target)


def build_from(node: DictConfig, target: Target) -> Drafter:
    """The same from a config node."""
    vocabulary = target.vocabulary_size
    OmegaConf.register_new_resolver("zoo", lambda name: _tiny_folder(name, vocabulary), replace=True)
    root = OmegaConf.create({"target": {"dtype": "float32", "attention": "sdpa"}, "drafter": node})
    for inner in _nodes(root.drafter):
        if str(inner.get("_target_", "")).endswith("StandardLibrary"):
            inner.folder = _tiny_library()
    return instantiate(root.drafter)(target=target)


def _nodes(node: DictConfig) -> list[DictConfig]:
    found = [node]
    for key in node:
        if not OmegaConf.is_interpolation(node, key) and isinstance(node[key], DictConfig):
            found += _nodes(node[key])
    return found


@cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="outrider-tests-"))


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
