"""The layout: imports between folders, sizes of folders, and the index of ARCHITECTURE.md."""

import ast
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
TREES = ("framework", "drafters", "experiments")
MOST_MODULES = 16

# Folder of the framework -> other folders that it may import.
MAY_IMPORT = {
    "core": set(),
    "kernels": {"core"},
    "models": {"core", "kernels"},
    "verifiers": {"core"},
    "metrics": {"core", "models"},
    "heads": {"core", "models", "kernels"},
    "prompts": {"core", "models"},
    "gamma_policies": {"core", "metrics", "heads"},
    "drafting": {"core", "models", "prompts"},
    "training": {"core", "models", "heads"},
    "decoding": {"core", "models", "metrics", "verifiers", "gamma_policies", "kernels"},
    "remote": {"core", "models", "drafting"},
    "conformance": {"core", "models", "metrics", "verifiers", "prompts", "gamma_policies", "decoding"},
}
DRAFTERS_MAY_USE = {"framework", "torch", "numpy", "transformers"} | sys.stdlib_module_names
ENGINE = "framework.decoding.engine"
CORPORA = {path.stem for path in (REPOSITORY / "experiments" / "corpora").iterdir()} - {"__init__", "__pycache__"}


@dataclass(frozen=True)
class Arrow:
    """One import: the importing module and the imported name."""

    origin: str
    imported: str

    def __str__(self) -> str:
        return f"{self.origin} imports {self.imported}"


def arrows_of(origin: str, source: str, *, is_package: bool) -> list[Arrow]:
    """All imports of a module, also inside functions and for types, as full dotted names."""
    arrows = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = origin.split(".")[: None if is_package else -1]
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join(above + ([node.module] if node.module else []))
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        arrows += [Arrow(origin, name) for name in names]
    return arrows


def within(name: str, *modules: str) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def wrong(arrow: Arrow) -> bool:
    """Whether an import breaks the layering."""
    origin, imported = arrow.origin, arrow.imported
    tree, library = origin.split(".")[0], imported.split(".")[0]
    if library in ("hydra", "omegaconf") and tree != "experiments":
        return True
    if library == "wandb" and not origin.startswith("experiments.tracking.wandb_"):
        return True
    if library == "datasets" and origin != "framework.prompts.hugging_face_dataset":
        return True
    if tree == "framework":
        return library in ("drafters", "experiments", "conf") or _wrong_inside_framework(origin, imported)
    if tree == "drafters":
        return within(imported, ENGINE) or not (library in DRAFTERS_MAY_USE or within(imported, origin))
    return False


def _wrong_inside_framework(origin: str, imported: str) -> bool:
    if not within(imported, "framework") or origin == "framework":
        return within(imported, "framework")
    folder, other = origin.split(".")[1], [*imported.split("."), ""][1]
    return other != folder and other not in MAY_IMPORT[folder]


def modules() -> dict[str, Path]:
    """Every module of the three trees, by dotted name."""
    found = {}
    for tree in TREES:
        for path in sorted((REPOSITORY / tree).rglob("*.py")):
            parts = path.relative_to(REPOSITORY).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.mark.parametrize("origin", modules())
def test_no_import_points_the_other_way(origin: str) -> None:
    path = modules()[origin]
    arrows = arrows_of(origin, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    assert [str(arrow) for arrow in arrows if wrong(arrow)] == []


def test_every_folder_of_the_framework_has_its_arrows_and_none_is_part_of_a_cycle() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "framework").glob("*/__init__.py")}
    assert folders == set(MAY_IMPORT)
    below: set[str] = set()
    while len(below) < len(MAY_IMPORT):  # folders that import only folders below are next
        ready = {folder for folder, others in MAY_IMPORT.items() if others <= below} - below
        assert ready, f"a cycle among {sorted(MAY_IMPORT.keys() - below)}"
        below |= ready


def test_no_module_of_the_framework_lies_outside_its_folders() -> None:
    assert [path.name for path in (REPOSITORY / "framework").glob("*.py")] == ["__init__.py"]


def test_beside_the_folders_of_experiments_lie_commands_and_the_api_only() -> None:
    loose = {
        path for path in (REPOSITORY / "experiments").glob("*.py") if path.stem not in ("__init__", "__main__", "api")
    }
    assert [path.name for path in loose if "@command(" not in path.read_text(encoding="utf-8")] == []


def test_no_folder_holds_more_modules_than_a_reader_can_look_over() -> None:
    paths = [path for path in modules().values() if path.name != "__init__.py"]
    paths += (REPOSITORY / "tests").rglob("*.py")
    sizes = Counter(str(path.parent.relative_to(REPOSITORY)) for path in paths)
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES and folder != "experiments"} == {}


def test_every_folder_is_a_package_so_that_an_installation_has_it() -> None:
    folders = {path.parent for path in modules().values()}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_the_framework_holds_no_task_corpus_and_names_no_command() -> None:
    assert len(CORPORA) >= 6
    names = {part for name in modules() if within(name, "framework") for part in name.split(".")}
    assert names & CORPORA == set()
    for name, path in modules().items():
        assert not (within(name, "framework") and "python -m experiments" in path.read_text(encoding="utf-8")), name


def test_no_module_is_called_utils() -> None:
    assert [name for name in modules() if name.split(".")[-1] in ("util", "utils", "helpers", "common", "misc")] == []


def test_tests_lie_in_folders_that_mirror_the_code() -> None:
    beside = {"tests", "tests/e2e", "tests/mutants", "tests/support", "tests/support/published"}
    folders = {str(path.parent.relative_to(REPOSITORY)) for path in (REPOSITORY / "tests").rglob("*.py")} - beside
    assert [folder for folder in folders if not (REPOSITORY / folder.removeprefix("tests/")).is_dir()] == []
    assert {path.name for path in (REPOSITORY / "tests").glob("*.py")} <= {
        "conftest.py",
        "test_architecture.py",
        "test_words.py",
    }
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []  # pytest imports them by name


def listed_folders(architecture: str) -> list[str]:
    """The folders in the list "What is where", one per line."""
    (section,) = re.findall(r"^## What is where\n(.*?)^## ", architecture, re.DOTALL | re.MULTILINE)
    lines = [line for line in section.splitlines() if line]
    return [found[1] if (found := re.match(r"- `([\w/]+)/`: ", line)) else line for line in lines]


def test_architecture_has_a_line_for_every_folder_and_no_other() -> None:
    folders = {str(path.parent.relative_to(REPOSITORY)) for path in modules().values()} - {"framework"}
    folders -= {folder for folder in folders if folder.startswith("experiments/corpora/")}
    expected = sorted(folders | {"conf", "experiments/zoo", "hydra_plugins"})
    assert sorted(listed_folders((REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8"))) == expected


def test_files_that_architecture_names_exist() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(rf"`((?:{'|'.join(TREES)}|hydra_plugins|tests|conf)/[\w/.]*)`", text))
    assert len(named) > 50
    assert [path for path in sorted(named) if "yours" not in path and not (REPOSITORY / path).exists()] == []


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("framework.metrics.tally", "import wandb"),
        ("framework.metrics.tally", "from omegaconf import DictConfig"),
        ("framework.metrics.tally", "def late():\n    import hydra.utils"),
        ("framework.metrics.tally", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hydra"),
        ("framework.metrics.tally", "from drafters.ngram import NGram"),
        ("framework.metrics.tally", "import experiments"),
        ("framework.metrics.tally", "from framework import decoding"),
        ("framework.metrics.tally", "from framework.decoding import engine"),
        ("framework.metrics.tally", "from ..decoding.autoregressive import Autoregressive"),
        ("framework.metrics.tally", "from framework.conformance.report import Report"),
        ("framework.core.draft", "from framework.metrics.theory import speedup"),
        ("framework.core.drafter", "from framework.models.target import Target"),
        ("framework.core.sampling", "from framework.verifiers.verifier import Verifier"),
        ("framework.models.target", "from framework.metrics.tally import Tally"),
        ("framework.decoding.engine", "import framework.conformance"),
        ("framework.decoding.engine", "from framework.drafting.chain_builder import ChainBuilder"),
        ("framework.verifiers.verifier", "from ..models.cached_lm import CachedLM"),
        ("framework.verifiers.block", "from framework.decoding.engine import Engine"),
        ("framework.gamma_policies.bandit", "from framework.training.trainable import Trainable"),
        ("framework", "from framework.decoding.engine import Engine"),
        ("framework.prompts.jsonl", "def late():\n    import datasets"),
        ("drafters.ngram", "from drafters.prompt_lookup import PromptLookup"),
        ("drafters.ngram", "from .prompt_lookup import PromptLookup"),
        ("drafters.ngram", "from drafters import prompt_lookup"),
        ("drafters.ngram", "import scipy.sparse"),
        ("drafters.ngram", "import hydra"),
        ("drafters.ngram", "from experiments.measure import measure"),
        ("drafters.ngram", "from framework.decoding.engine import Engine"),
        ("experiments.measure", "import wandb"),
        ("experiments.measure", "try:\n    from wandb import init\nexcept ImportError:\n    pass"),
    ],
)
def test_a_wrong_arrow_is_seen(origin: str, source: str) -> None:
    assert any(wrong(arrow) for arrow in arrows_of(origin, source, is_package=False))


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("framework.core.draft", "from framework.core.sampling import Sampling"),
        ("framework.core.drafter", "from .draft import Draft, Distribution"),
        ("framework.models.target", "from framework.models import cached_lm"),
        ("framework.decoding.engine", "from framework.verifiers.verifier import Verifier\nimport torch"),
        ("framework.conformance.drafter_checks", "from framework.decoding.engine import Engine"),
        ("framework.prompts.hugging_face_dataset", "def late():\n    import datasets"),
        (
            "drafters.small_transformer",
            "import math\nimport numpy as np\nfrom framework.models.cached_lm import CachedLM",
        ),
        ("experiments.tracking.wandb_tracker", "import wandb"),
        ("experiments.config.builders", "import hydra\nfrom framework.decoding.engine import Engine"),
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
    program = f"import sys; sys.modules.update(dict.fromkeys({blocked})); import {others}"
    result = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
