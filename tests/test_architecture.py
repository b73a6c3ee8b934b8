"""The arrows between folders, read from the imports; and the framework without what only experiments may use."""

import ast
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
FOLDERS = ("framework", "drafters", "experiments")

WORDS = {
    "framework.sequences",
    "framework.draft",
    "framework.tree",
    "framework.sampling",
    "framework.computed_once",
    "framework.whole_numbers",
}
CONTRACTS = {
    "framework.drafter",
    "framework.target",
    "framework.tracker",
    "framework.verifiers.verifier",
    "framework.gamma_policies.gamma_policy",
    "framework.prompts.prompt_source",
}
LOOPS = {"framework.autoregressive", "framework.engine", "framework.beam_search"}
CONFORMANCE = "framework.conformance"  # a package; runs the loops on what it checks: above everything
DRAFTERS_MAY_USE = {"framework", "torch", "numpy", "transformers"} | sys.stdlib_module_names


@dataclass(frozen=True)
class Arrow:
    """One import: the module that holds it, and what it imports."""

    origin: str
    imported: str
    for_types_only: bool

    def __str__(self) -> str:
        return f"{self.origin} imports {self.imported}"


def arrows_of(origin: str, source: str, *, is_package: bool) -> list[Arrow]:
    """All imports of a module, those inside functions included; a name imported from a package counts as its module."""
    tree = ast.parse(source)
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    typing_blocks = [node for node in conditions if ast.unparse(node.test).endswith("TYPE_CHECKING")]
    for_types = {id(inner) for block in typing_blocks for statement in block.body for inner in ast.walk(statement)}
    arrows = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = origin.split(".")[: None if is_package else -1]
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(above + ([node.module] if node.module else []))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        arrows += [Arrow(origin, name, id(node) in for_types) for name in names]
    return arrows


def within(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def wrong(arrow: Arrow) -> bool:
    """Whether an import points the other way."""
    origin, imported = arrow.origin, arrow.imported
    folder, library = origin.split(".")[0], imported.split(".")[0]
    if library in ("hydra", "omegaconf") and folder != "experiments":
        return True
    if library == "wandb" and not origin.startswith("experiments.wandb_"):
        return True
    if library == "datasets" and origin != "framework.prompts.hugging_face_dataset":
        return True
    if within(imported, "framework.engine") and folder != "experiments" and not within(origin, CONFORMANCE):
        return True
    if folder == "framework":
        return library in ("drafters", "experiments", "conf") or _wrong_inside_framework(arrow)
    if folder == "drafters":
        return not (library in DRAFTERS_MAY_USE or within(imported, origin))
    return False


def _wrong_inside_framework(arrow: Arrow) -> bool:
    # A name needed by a type checker only is not a dependency of the running program.
    if not within(arrow.imported, "framework") or arrow.for_types_only:
        return False
    if arrow.origin in WORDS | CONTRACTS:
        return not within(arrow.imported, *WORDS)
    if arrow.origin in LOOPS:
        return within(arrow.imported, CONFORMANCE)
    return not within(arrow.origin, CONFORMANCE) and within(arrow.imported, *LOOPS, CONFORMANCE)


def modules() -> dict[str, Path]:
    """Every module of the three folders, by dotted name."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.mark.parametrize("origin", modules())
def test_no_import_points_the_other_way(origin: str) -> None:
    path = modules()[origin]
    arrows = arrows_of(origin, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    assert [str(arrow) for arrow in arrows if wrong(arrow)] == []


def test_the_modules_that_the_rules_name_exist() -> None:
    # A renamed contract would otherwise lose its rule in silence.
    assert WORDS | CONTRACTS | LOOPS | {CONFORMANCE} <= set(modules())


def test_no_module_is_called_utils() -> None:
    assert [name for name in modules() if name.split(".")[-1] in ("util", "utils", "helpers", "common", "misc")] == []


def listed_modules(architecture: str) -> list[str]:
    """Dotted names of the list "What is where": the first name of an item is its folder, all others are modules."""
    (section,) = re.findall(r"^## What is where\n(.*?)^## ", architecture, re.DOTALL | re.MULTILINE)
    listed = []
    for item in section.split("\n- ")[1:]:
        folder, *names = re.findall(r"`([\w/]+)`", item)
        listed += [(folder + name).replace("/", ".") for name in names]
    return listed


def test_architecture_names_every_module_once_and_no_other() -> None:
    listed = listed_modules((REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(name for name, path in modules().items() if path.name != "__init__.py")


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("framework.tally", "import wandb"),
        ("framework.tally", "from omegaconf import DictConfig"),
        ("framework.tally", "def late():\n    import hydra.utils"),
        ("framework.tally", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hydra"),
        ("framework.tally", "from drafters.ngram import NGram"),
        ("framework.tally", "import experiments"),
        ("framework.tally", "from framework import engine"),
        ("framework.tally", "from . import engine"),
        ("framework.tally", "from .autoregressive import Autoregressive"),
        ("framework.beam_search", "from framework.engine import Engine"),
        ("framework.engine", "import framework.conformance"),
        ("framework.draft", "from framework.theory import speedup"),
        ("framework.sampling", "from framework.verifiers.verifier import Verifier"),
        ("framework.target", "from framework.cached_lm import CachedLM"),
        ("framework.drafter", "from framework.target import Target"),
        ("framework.verifiers.verifier", "from ..cached_lm import CachedLM"),
        ("framework.verifiers.block", "from framework.engine import Engine"),
        ("drafters.ngram", "from drafters.prompt_lookup import PromptLookup"),
        ("drafters.ngram", "from .prompt_lookup import PromptLookup"),
        ("drafters.ngram", "from drafters import prompt_lookup"),
        ("framework.prompts.jsonl", "def late():\n    import datasets"),
        ("framework.tally", "from framework.conformance.report import Report"),
        ("drafters.ngram", "import scipy.sparse"),
        ("drafters.ngram", "import hydra"),
        ("drafters.ngram", "from experiments.measure import measure"),
        ("drafters.ngram", "from framework.engine import Engine"),
        ("experiments.measure", "import wandb"),
        ("experiments.measure", "try:\n    from wandb import init\nexcept ImportError:\n    pass"),
    ],
)
def test_a_wrong_arrow_is_seen(origin: str, source: str) -> None:
    assert any(wrong(arrow) for arrow in arrows_of(origin, source, is_package=False))


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("framework.draft", "from framework.sampling import Sampling"),
        ("framework.drafter", "from .draft import Draft, Law"),
        ("framework.target", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import framework.cached_lm"),
        ("framework.engine", "from framework.verifiers.verifier import Verifier\nimport torch"),
        ("framework.conformance.drafter_checks", "from framework.engine import Engine"),
        ("framework.prompts.hugging_face_dataset", "def late():\n    import datasets"),
        ("drafters.small_transformer", "import math\nimport numpy as np\nfrom framework.cached_lm import CachedLM"),
        ("experiments.wandb_tracker", "import wandb"),
        ("experiments.assemble", "import hydra\nfrom omegaconf import OmegaConf\nfrom framework.engine import Engine"),
    ],
)
def test_a_right_arrow_is_let_through(origin: str, source: str) -> None:
    assert not any(wrong(arrow) for arrow in arrows_of(origin, source, is_package=False))


def test_relative_imports_in_a_package_start_at_itself() -> None:
    (arrow,) = arrows_of("framework.verifiers", "from .verifier import Verifier", is_package=True)
    assert arrow.imported == "framework.verifiers.verifier.Verifier"


def test_the_framework_imports_without_hydra_omegaconf_and_wandb() -> None:
    blocked = ["hydra", "omegaconf", "wandb", "drafters", "experiments"]
    others = ", ".join(name for name in modules() if name.startswith("framework."))
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import framework.engine; import {others}"
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
