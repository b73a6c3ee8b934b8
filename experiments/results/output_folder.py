"""The output folder of a command, checked before anything is loaded."""

import tempfile
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from experiments.config.cli_errors import end_with


class OutputFolder(Callback):
    """Hydra callback that exits with a one-line error if the output folder is not writable.

    Hydra itself would print a traceback.
    """

    def __init__(self, run: str, sweep: str):
        """
        Args:
            run: config key of the folder of a single run, named in the error.
            sweep: the same for -m.
        """
        self._run, self._sweep = run, sweep

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        _resolve_hydra(config)
        _try(Path(config.hydra.run.dir), self._run)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        _resolve_hydra(config)
        _try(Path(config.hydra.sweep.dir), self._sweep)


def _resolve_hydra(config: DictConfig) -> None:
    """Set Hydra's global config, so that ${hydra:...} resolves."""
    HydraConfig.instance().set_config(config.copy())  # which makes its argument read-only


def _try(folder: Path, key: str) -> None:
    """Create and delete a file in the folder, or in its nearest existing parent."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        reason = f"{key} is {folder}, and {there} cannot be written to ({error.strerror}); allowed: another folder"
        end_with(f"{type(error).__name__}: {reason}")  # Hydra turns exceptions of a callback into warnings
