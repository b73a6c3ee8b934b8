"""Commands: modules of experiments/ that are imported after their arguments are checked, because it takes seconds."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from experiments.config.cli_errors import announce, announcing, one_line_errors, status
from experiments.config.command_line import checked_arguments
from experiments.config.help_text import CONF
from experiments.config.quick_imports import list_models_once, without_garbage_collection
from experiments.config.resolvers import register_resolvers

WITHOUT_MODELS = ("gpu_acceptance", "wandb_report")  # commands that import no Transformers


@dataclass(frozen=True)
class Command:
    """The main function of experiments/NAME.py; called without arguments, it takes them from the command line."""

    name: str
    run: Callable[[DictConfig], None]

    def __call__(self) -> None:
        run_command(self.name)


def command(name: str) -> Callable[[Callable[[DictConfig], None]], Command]:
    """Decorate the main function of experiments/NAME.py, which takes conf/NAME.yaml composed with the arguments."""
    return lambda run: Command(name, run)


def run_command(name: str) -> None:
    """Check the arguments in sys.argv, compose conf/NAME.yaml with them, and run `main` of experiments/NAME.py.

    Help texts and errors in the arguments need none of the command's imports.
    """

    def task(cfg: DictConfig) -> None:
        register_resolvers()  # a launcher's processes unpickle this function only
        try:
            with announcing("framework"):
                _loaded(name).run(cfg)
        except BaseException:
            remove_if_unused(Path(HydraConfig.get().runtime.output_dir))
            raise

    task.__module__ = f"experiments.{name}"  # Hydra names the job after it
    register_resolvers()
    given = sys.argv
    with one_line_errors(interrupted="nothing was kept"), without_garbage_collection():
        sys.argv = [f"python -m experiments.{name}", *checked_arguments(name, given[1:])]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(task)()
    except KeyboardInterrupt:  # before the command's own part
        announce("interrupted; nothing was kept")
        raise SystemExit(1) from None
    finally:
        sys.argv = given


def _loaded(name: str) -> Command:
    module = f"experiments.{name}"
    if module in sys.modules:
        return sys.modules[module].main
    if not sys.stderr.isatty():
        announce(f"{name}: loading PyTorch and Transformers")
    with status("loading PyTorch and Transformers"), without_garbage_collection():
        if name not in WITHOUT_MODELS:
            list_models_once()
        return import_module(module).main


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
