"""The built wheel, installed elsewhere: its contents, and `outrider` in an empty folder."""

import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support.tiny_pair import tiny_pair

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("framework", "drafters", "conf", "experiments", "hydra_plugins")
DATA = {".yaml", ".html", ".css", ".js", ".safetensors", ".json"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPOSITORY / name, sources)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(built), "."]
    subprocess.run(pip, cwd=sources, check=True, capture_output=True)
    (file,) = built.glob("*.whl")
    return file


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_data_file_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    of_packages = [path for name in PACKAGES for path in (REPOSITORY / name).rglob("*") if path.is_file()]
    expected = {str(path.relative_to(REPOSITORY)) for path in of_packages if path.suffix in {".py", *DATA}}
    assert len(expected) > 400 and held >= expected
    assert {name.split("/")[0] for name in held} == set(PACKAGES)


@pytest.mark.slow
def test_the_installed_command_compares_a_users_own_pair_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    environment, models, empty = tmp_path / "environment", tmp_path / "models", tmp_path / "empty"
    venv.create(environment, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True, capture_output=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Packages without the `.pth` of an editable installation: such files are read in the environment's own folder only.
    (packages / "dependencies.pth").write_text(str(Path(torch.__file__).parents[1]))

    models.mkdir()
    empty.mkdir()
    options = ["max_new_tokens=6", "repeats=1", "hugging_face=false", "temperatures=[0]", "tracker=jsonl"]
    done = subprocess.run(
        [environment / "bin" / "outrider", "compare", *tiny_pair(models, "ab ab ab", "cd", family="qwen3"), *options,
         f"drafter.model.path={models / 'drafter'}"],
        cwd=empty, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "models/target (" in done.stdout and "models/drafter (" in done.stdout
    assert {"small_transformer", "prompt_lookup", "baseline"} <= set(done.stdout.split())
    assert [path.name for path in empty.iterdir()] == ["outputs"]
