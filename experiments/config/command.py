"""Entry points of `python -m experiments.NAME`."""

import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.cli_errors import one_line_errors
from experiments.config.command_line import checked_arguments


def command(config_name: str) -> Callable[[Callable[[DictConfig], None]], Callable[[], None]]:
    """Decorate a function to be called with conf/CONFIG_NAME.yaml composed with the command line."""

    def decorate(run: Callable[[DictConfig], None]) -> Callable[[], None]:
        @wraps(run)
        def task(cfg: DictConfig) -> None:
            try:
                run(cfg)
            except BaseException:
                remove_if_unused(Path(HydraConfig.get().runtime.output_dir))
                raise

        composed = hydra.main(version_base="1.3", config_path="../conf", config_name=config_name)(task)

        @wraps(run)
        def main() -> None:
            given = sys.argv
            with one_line_errors(interrupted=None):
                sys.argv = [given[0], *checked_arguments(config_name, given[1:])]
            try:
                composed()
            finally:
                sys.argv = given

        return main

    return decorate


def remove_if_unused(folder: Path) -> None:
    """Remove a failed command's folder, and empty folders above it, if it holds only Hydra's own files."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    if any(path.parent.name != ".hydra" and not (path.suffix == ".log" and not path.stat().st_size) for path in files):
        return
    for path in files:
        path.unlink()
    below = sorted(
        (path for path in folder.rglob("*") if path.is_dir()), key=lambda path: len(path.parts), reverse=True
    )
    for empty in (*below, folder, *folder.parents):
        if empty in (Path.cwd(), *Path.cwd().parents) or not empty.is_dir() or any(empty.iterdir()):
            break
        empty.rmdir()
